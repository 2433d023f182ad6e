"""Tensor bytes of a step by kind, counted at every operator: what a GPU's allocator would have to hold, on any device.

The resident size of a process is nearly all PyTorch itself and shows nothing of a strategy; this counts storages when
operators create them, when they are freed, and when FSDP resizes them.
"""

import gc
import re
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardlab.patches import torch_internals
from shardlab.records.reports import Kind

ATTENTION = re.compile(
    r"_scaled_dot_product_(?:fused_)?(flash|efficient|cudnn|\w+able)\w*(?<!backward)$|_safe_softmax$"
)
"""Operators of scaled dot product attention; without a fused kernel it uses a softmax that nothing else uses."""
KINDS: tuple[str, ...] = get_args(Kind)


class Memory(TorchDispatchMode):
    """Counts the storages on devices of one kind: those that exist on entry, and those that operators create inside."""

    def __init__(self, device: torch.device, *, fake: bool = False) -> None:
        """``fake``: also count fake tensors, which have sizes and no content."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.fake = device, fake
        self.events: list[tuple[int, int]] = []
        """(storage number, change in bytes)"""
        self.attention: str | None = None
        """The attention kernel that was used."""
        self.kinds: dict[int, str] = {}
        self.places: dict[int, int] = {}
        """Storage number: device number."""
        self._numbers: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._references: dict[int, Any] = {}
        self._before: list[tuple[int, int]] = []
        self._patched = ExitStack()

    def __enter__(self) -> "Memory":
        """Record the existing storages, and count from now on."""
        for tensor in _tensors_there():
            self._see(tensor, "other")
        self._patched.enter_context(torch_internals.resizes(self._resized))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patched.close()
        self._references.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any("DTensor" in kind.__name__ for kind in types):
            return NotImplemented  # it is dispatched again as its component operators
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if kernel := ATTENTION.match(name):
            self.attention = kernel[1] or "math"
        if "all_gather" in str(func) or "allgather" in str(func):
            kind = "gathered"
        else:
            kind = "activations" if torch.is_grad_enabled() else "other"  # backward passes run with gradients disabled
        for tensor in _flat(result):
            self._see(tensor, kind)
        return result

    def name(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Assign tensors to a kind; one that no operator inside created existed before (buckets of C++ code)."""
        for tensor in tensors:
            number = self._numbers.get(tensor.untyped_storage()._cdata)
            if number is None and (number := self._see(tensor, kind)) is not None:
                self._before.append(self.events.pop())
            if number is not None:
                self.kinds[number] = kind

    def figures(self) -> dict[str, Any]:
        """Return the peak of the fullest device, its composition, and the maximum of each kind, under the names of
        TensorBytes.
        """
        of_devices = [self._figures(place) for place in sorted({*self.places.values(), 0})]
        return max(of_devices, key=lambda device: device["peak"])

    def _figures(self, place: int) -> dict[str, Any]:
        held, largest = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
        peak, at_peak = 0, dict(held)
        for number, change in (*self._before, *self.events):
            if self.places[number] != place:
                continue
            kind = self.kinds[number]
            held[kind] += change
            largest[kind] = max(largest[kind], held[kind])
            if (total := sum(held.values())) > peak:
                peak, at_peak = total, dict(held)
        return {"peak": peak, "at_peak": at_peak, "largest": largest}

    def _see(self, tensor: Tensor, kind: str) -> int | None:
        """Count a tensor's storage, unless it is known, on another device or has no memory; return its number."""
        if type(tensor).__name__ == "AsyncCollectiveTensor":
            tensor = tensor.elem  # type: ignore[attr-defined]  # its own storage has no memory
        if tensor.device.type != self.device.type or tensor.layout is not torch.strided or self._is_left_out(tensor):
            return None
        storage = tensor.untyped_storage()
        if (number := self._numbers.get(storage._cdata)) is not None:
            return number
        size = storage.nbytes()
        if not isinstance(size, int):
            return None  # symbolic: torch.compile is tracing
        number = len(self.kinds)
        self.kinds[number] = kind
        self.places[number] = tensor.device.index or 0
        self._numbers[storage._cdata] = number
        self._sizes[number] = 0
        self._change(number, size)
        self._references[number] = weakref.ref(storage, self._freed(number, storage._cdata))
        return number

    def _is_left_out(self, tensor: Tensor) -> bool:
        if type(tensor).__name__ == "FakeTensor":
            return not self.fake
        return tensor.is_meta

    def _change(self, number: int, size: int) -> None:
        self.events.append((number, size - self._sizes[number]))
        self._sizes[number] = size

    def _freed(self, number: int, address: int) -> Callable[[Any], None]:
        def freed(_: Any) -> None:
            self._change(number, 0)
            self._numbers.pop(address, None)

        return freed

    def _resized(self, storage: Any, size: int) -> None:
        if (number := self._numbers.get(storage._cdata)) is not None:
            self.kinds[number] = "gathered"
            self._change(number, size)


def _tensors_there() -> list[Tensor]:
    """Return all plain tensors of the process.

    Other threads wait: a tuple that one of them is building is among the objects, and CPython refuses to resize a tuple
    that anything else refers to (SystemError in tupleobject.c).
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        return [getattr(each, "_local_tensor", each) for each in gc.get_objects() if issubclass(type(each), Tensor)]
    finally:
        sys.setswitchinterval(interval)


def _flat(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _flat(inner)
