"""PyTorch: modules without memory, a module's other forward pass or class; and what a plan or a measurement needs of
its groups, DTensors, pipelines and storages.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules that are made inside keep no parameter, but their buffers: a position table is in no file, and
    ``torch.device("meta")`` would take its content, too.
    """
    register = nn.Module.register_parameter
    # A constructor may give one parameter to several modules from a variable of its own.
    known: Any = WeakIdKeyDictionary()

    def without_data(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta and not is_lazy(parameter):
            if parameter not in known:
                known[parameter] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
            parameter = known[parameter]
        register(module, name, parameter)

    with mock.patch.object(nn.Module, "register_parameter", without_data):
        yield


@contextmanager
def attributes_read(note: Callable[[Any], None]) -> Iterator[None]:
    """Call ``note`` with each parameter, buffer or submodule that is read from a module, for which there is no hook."""
    get = nn.Module.__getattr__

    def noted(module: nn.Module, name: str) -> Any:
        note(value := get(module, name))
        return value

    with mock.patch.object(nn.Module, "__getattr__", noted):
        yield


def around_forward(module: nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap a module's forward in a new class: on the object, DataParallel's replicas would share it, bound to
    the first device's weights. The weights keep their names.
    """
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": wrap(kind.forward)})


def with_base(module: nn.Module, base: type[nn.Module], **attributes: Any) -> None:
    """Give a module one more base class, before its own, in place: its weights keep their names."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (base, kind), attributes)


@contextmanager
def resizes(seen: Callable[[Any, int], None]) -> Iterator[None]:
    """Call ``seen`` with each storage that is resized inside, after it was, and its new size in bytes."""
    resize: Callable[[Any, int], Any] = torch.UntypedStorage.resize_

    def resized(storage: Any, size: int) -> Any:
        done = resize(storage, size)
        seen(storage, size)
        return done

    with mock.patch.object(torch.UntypedStorage, "resize_", resized):
        yield


@contextmanager
def shapes_uncounted() -> Iterator[None]:
    """DTensor finds the shape of an operator's result by that operator on fake tensors of whole sizes.

    Under our modes what it makes there would be counted as memory of the rank (PyTorch issue 183970).
    """
    # Imported here: takes half a second that plain tensors do not need.
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.utils._python_dispatch import _disable_current_modes

    find = ShardingPropagator._propagate_tensor_meta_non_cached

    def found(propagator: ShardingPropagator, schema: Any) -> Any:
        with _disable_current_modes():
            return find(propagator, schema)

    with mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", found):
        yield


@contextmanager
def sends_hold_their_tensors() -> Iterator[None]:
    """Keep what a schedule sends alive as long as the send's handle, in part to the end of the step: the handles of the
    fake group hold no tensors.
    """
    from torch.distributed.pipelining import schedules

    batch: Callable[..., list[Any]] = schedules._batch_p2p

    def kept(operations: list[Any], *words: Any, **options: Any) -> list[Any]:
        tensors = [operation.tensor for operation in operations]
        return [SimpleNamespace(wait=work.wait, tensors=tensors) for work in batch(operations, *words, **options)]

    with mock.patch.object(schedules, "_batch_p2p", kept):
        yield
