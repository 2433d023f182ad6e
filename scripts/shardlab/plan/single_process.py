"""Simulation of strategies that drive several devices from one process: memory of the fullest device.

All tensors of a simulation are CPU tensors, so the device of each one is recorded separately.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors
from torch.func import functional_call

from shardlab.measure.memory import Memory
from shardlab.runtime.distributed import World
from shardlab.runtime.tasks import Outputs
from shardlab.settings.types import Run

BUFFER = 10 * 2**20
"""Bytes of gradients that DataParallel sums at a time."""


def has_devices(run: Run) -> bool:
    """Return whether a run's process drives several devices. All CPUs count as one device."""
    return run.devices_per_rank > 1 and run.site.device != "cpu"


def called(run: Run, part: nn.Module) -> nn.Module:
    """Return the module to call instead of a part of the model."""
    return (
        _FirstReplica(part, run.devices_per_rank) if run.options.single_process == "dp" and has_devices(run) else part
    )


def memory(run: Run, engine: Any, world: World) -> Memory:
    """Return the memory counter for a step of the engine, per device if its parts are on several devices."""
    if run.options.single_process != "mp" or not has_devices(run):
        return Memory(world.device, fake=True)
    return _MemoryOfDevices(engine, world.device)


class _MemoryOfDevices(Memory):
    """Counter per device: a result is placed where its operator's inputs are; ``moved`` copies to another device."""

    def __init__(self, engine: Any, device: torch.device) -> None:
        super().__init__(device, fake=True)
        self.engine = engine
        self._current = 0
        self._target: int | None = None
        engine.moved = self._moved

    def __enter__(self) -> Memory:
        super().__enter__()
        for number, part in enumerate(self.engine.parts):
            for parameter in part.parameters():
                for tensor in (parameter, *self.engine.optimizer.state[parameter].values()):
                    self.places[self._numbers[tensor.untyped_storage()._cdata]] = number
            for buffer in part.buffers():
                self.places[self._numbers[buffer.untyped_storage()._cdata]] = number
        weights = self.engine.parameters()
        for name, average in self.engine.average.tensors.items():
            self.places[self._numbers[average.untyped_storage()._cdata]] = self.place_of(weights[name]) or 0
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on the device of its first known input."""
        known = (self.place_of(tensor) for tensor in _tensors(args))
        self._current = next((place for place in known if place is not None), self._current)
        if self._target is not None:
            self._current = self._target
        return super().__torch_dispatch__(func, types, args, kwargs)

    def place_of(self, tensor: Tensor) -> int | None:
        """Return the number of the device that a tensor is on; None if it was never seen."""
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        return None if number is None else self.places[number]

    def copied(self, value: Tensor, device: int) -> Tensor:
        """Copy a tensor to the device with this number."""
        self._target = device
        try:
            return value.clone()
        finally:
            self._target = None

    def _place(self, tensor: Tensor) -> int:
        return self._current

    def _moved(self, value: Tensor, device: int) -> Tensor:
        if self.place_of(value) == device:
            return value
        if not value.requires_grad:
            return self.copied(value, device)
        return cast(Tensor, _Moved.apply(value, self, device))  # type: ignore[no-untyped-call]


class _Moved(torch.autograd.Function):
    """Copy to another device; the gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, memory: _MemoryOfDevices, device: int) -> Tensor:
        ctx.memory, ctx.source = memory, memory.place_of(value)
        return memory.copied(value, device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.memory.copied(gradient, ctx.source), None, None


def _tensors(values: Any) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


class _FirstReplica(nn.Module):
    """The first device of ``torch.nn.DataParallel``, which is the fullest: it holds the weights, the optimizer and the
    first part of a batch, gathers the outputs of all parts for the loss, and sums the gradients.
    """

    def __init__(self, model: nn.Module, devices: int) -> None:
        super().__init__()
        self.model, self.devices = model, devices

    def forward(self, *inputs: Tensor, **keywords: Tensor) -> Outputs:
        """Return the outputs of the whole batch, each (rows, ...)."""
        rows = len(inputs[0])
        part = -(-rows // self.devices)
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        replica = dict(zip(names, _Broadcast.apply(*parameters), strict=True))  # type: ignore[no-untyped-call]
        first = {name: value[:part] for name, value in keywords.items()}
        outputs = functional_call(self.model, replica, tuple(value[:part] for value in inputs), first)
        each = outputs if isinstance(outputs, tuple) else (outputs,)
        gathered = tuple(cast(Tensor, _Gather.apply(value, rows)) for value in each)  # type: ignore[no-untyped-call]
        return gathered if len(gathered) > 1 else gathered[0]


class _Broadcast(torch.autograd.Function):
    """The weights of a replica; on the first device, the model's own.

    Their gradients are summed in buffers (torch/nn/parallel/comm.py): a copy of this device's, another device's, the
    sum. With NCCL no buffer is needed for the other device's.
    """

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Any:
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        summed: list[Tensor] = []
        for chunk in _take_tensors(gradients, BUFFER):
            flat = _flatten_dense_tensors(chunk)
            summed += _unflatten_dense_tensors(flat + flat.clone(), chunk)
        return tuple(summed)


class _Gather(torch.autograd.Function):
    """Gather the outputs of all replicas into one tensor."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, rows: int) -> Tensor:
        ctx.part = len(outputs)
        return outputs.new_empty(rows, *outputs.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[: ctx.part], None
