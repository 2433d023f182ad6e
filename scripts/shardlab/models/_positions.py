"""What a transformers model computes from its positions, where the largest of them decides about all others.

Rotary positions with dynamic NTK scaling or LongRoPE (Ding et al., 2024, arXiv:2402.13753) take other frequencies for
a longer sequence, and the library takes its length from the largest position that it is given. A rank of context
parallelism has a part of the positions, and a row of several documents has those of the longest one: here, each token
gets what it gets in its whole sequence, or in its document alone.
"""

import inspect
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch.overrides import TorchFunctionMode

from shardlab.patches.torch_internals import around_forward


class Largest(threading.local):
    """The largest positions of the forward pass that this thread is in; a replica of DataParallel has its own."""

    of_tokens: Tensor | None = None
    """Of each token's sequence or document, (batch, length); None: they are among the positions of the tokens."""
    of_documents = False
    """True if rows have several documents."""


OF_LARGEST = re.compile("dynamic|longrope")
"""Types of rotary positions whose frequencies the library takes from the largest position."""


def follow(model: nn.Module, layers: Iterable[nn.Module], largest: Largest) -> None:
    """Make the modules that compute from positions alone look at ``largest``, in place.

    Not those inside of ``layers``: a layer may be recomputed in the backward pass, when another micro-batch's largest
    positions are known.
    """
    inside = {module for layer in layers for module in layer.modules()}
    for module in model.modules():
        kinds: Any = getattr(module, "rope_type", "")
        depends = [kind for kind in (kinds.values() if isinstance(kinds, dict) else [kinds]) if OF_LARGEST.search(kind)]
        if depends and module not in inside and is_of_positions(module):
            around_forward(module, lambda forward: _by_documents(forward, largest))


def is_of_positions(module: nn.Module) -> bool:
    """Return whether a module of the library computes from positions alone, whatever it keeps of earlier ones."""
    arguments = [*inspect.signature(module.forward).parameters]
    return arguments[1:2] == ["position_ids"] and not any(True for _ in module.parameters())


def _by_documents(forward: Callable[..., Any], largest: Largest) -> Callable[..., Any]:
    def by_documents(module: nn.Module, x: Tensor, position_ids: Tensor, *args: Any, **named: Any) -> Any:
        def call(positions: Tensor) -> Any:
            return forward(module, x, positions, *args, **named)

        whole = largest.of_tokens
        if not torch.compiler.is_compiling() and detect_fake_mode():
            with _WithoutValues():
                return call(position_ids)
        if whole is None or whole.shape[-1] != position_ids.shape[-1]:
            return call(position_ids)
        if not largest.of_documents:
            return _cut(call(_with_last(position_ids, whole.flatten()[0])))
        found: Any = None
        for last in whole.unique():
            call(torch.zeros_like(position_ids))  # the library keeps the frequencies of the longest sequence until then
            rows = _cut(call(_with_last(position_ids.where(whole == last, 0), last)))
            found = rows if found is None else _where((whole == last)[..., None], rows, found)
        return found

    return by_documents


class _WithoutValues(TorchFunctionMode):
    """Answers no to what the library asks of the largest position, which fake tensors do not have: shapes do not depend
    on it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return False if func is Tensor.__bool__ else func(*args, **(kwargs or {}))


def _with_last(positions: Tensor, last: Tensor) -> Tensor:
    return torch.cat([positions, last.expand(*positions.shape[:-1], 1).to(positions)], -1)


def _cut(rows: Any) -> Any:
    """Return the rows (..., length + 1, size) without the last one."""
    return tuple(each[..., :-1, :] for each in rows) if isinstance(rows, tuple) else rows[..., :-1, :]


def _where(condition: Tensor, rows: Any, others: Any) -> Any:
    if isinstance(rows, tuple):
        return tuple(torch.where(condition, one, other) for one, other in zip(rows, others, strict=True))
    return torch.where(condition, rows, others)
