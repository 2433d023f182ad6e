"""Naive model parallelism: consecutive layers on the devices of one process, of which one computes at a time."""

import copy
import logging
import time
from typing import Any, cast

import torch
from torch import Tensor, nn

from shardlab.models._chain import INPUTS, Chain
from shardlab.parallel.native import NativeEngine
from shardlab.parallel.pipeline import Stopwatch
from shardlab.runtime.device import wait
from shardlab.runtime.tasks import MicroBatch, Outputs
from shardlab.settings.pipeline_schedules import boundaries

log = logging.getLogger(__name__)


class ModelParallelEngine(NativeEngine):
    """The chain split into as many parts as there are devices; on CPUs every device is the same one."""

    def __init__(self, run: Any, task: Any, world: Any, weights: Any) -> None:
        # Of the host, which waits for the devices: they work one after the other anyway.
        self.watches = [Stopwatch(torch.device("cpu")) for _ in range(run.devices_per_rank)]
        self.marks = [0.0] * run.devices_per_rank
        super().__init__(run, task, world, weights)

    def cut(self, model: nn.Module) -> list[nn.Module]:
        where = boundaries(self.run.model.segments, self.run.devices_per_rank)
        chain = cast(Chain, model)
        chain.segments()  # found once, not by each part
        parts = [copy.deepcopy(chain) for _ in where]
        for part, segments in zip(parts, where, strict=True):
            part.cut(*segments)
        log.info("Applied model parallelism: %d parts on %s", len(parts), ", ".join(map(str, self.devices())))
        return list(parts)

    def devices(self) -> list[torch.device]:
        return self.world.devices

    def outputs(self, micro: MicroBatch) -> Outputs:
        state, keywords = self.task.inputs(micro.batch)
        if cast(Chain, self.parts[0]).takes_inputs:
            keywords = {**keywords, INPUTS: state[0]}
        for number, (model, device) in enumerate(zip(self.models, self.devices(), strict=True)):
            wait(device)
            with self.watches[number].running("forward", 0):
                state = tuple(self.moved(value, number) for value in state)
                result = model(*state, **{name: self.moved(value, number) for name, value in keywords.items()})
                wait(device)
            state = result if isinstance(result, tuple) else (result,)
            for value in state:
                if value.requires_grad:
                    # This part's backward pass begins when its last output gradient arrives.
                    value.register_hook(lambda _, number=number, device=device: self._mark(number, device))
        outputs = tuple(self.moved(value, 0) for value in state)
        return outputs if len(outputs) > 1 else outputs[0]

    def moved(self, value: Any, number: int) -> Any:
        """Copy a tensor to the device of part ``number``; numbers stay as they are."""
        return value.to(self.devices()[number]) if isinstance(value, Tensor) else value

    def forward_backward(self, micro: MicroBatch, scale: float, *, last: bool) -> Tensor:
        for watch in self.watches:
            watch.begin()
        self.marks = [0.0] * len(self.marks)
        loss = super().forward_backward(micro, scale, last=last)
        wait(self.world.device)
        finished = time.perf_counter()
        marks = [mark or finished for mark in self.marks]  # frozen first parts have no backward pass
        for watch, mark, end in zip(self.watches, marks, [finished, *marks[:-1]], strict=True):
            watch.spans.append(("backward", 0, mark, end))
            watch.end()
        return loss

    def compute_spans(self) -> list[list[dict[str, Any]]]:
        return [watch.last() for watch in self.watches]

    def idle_fraction(self) -> list[float] | None:
        """See Engine: one number per device."""
        taken = [watch.take() for watch in self.watches]
        return [1 - busy / elapsed for busy, elapsed in taken] if taken[0][1] else None

    def _mark(self, number: int, device: torch.device) -> None:
        wait(device)
        self.marks[number] = time.perf_counter()
