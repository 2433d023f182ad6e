"""PyTorch's modules: made without memory for their parameters; one module's forward pass or class changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

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
