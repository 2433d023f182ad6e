"""Cost of a training run, measured while it runs: time, bytes sent, waiting, memory."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch

from shardlab.measure.memory import Memory
from shardlab.measure.traffic import TimelineRecorder, Traffic
from shardlab.records.timeline import RANKS_SHOWN
from shardlab.runtime.device import forget_peak, name, peak_memory
from shardlab.runtime.distributed import World
from shardlab.runtime.engine import Engine
from shardlab.settings.types import WARMUP_STEPS


class Meter:
    """Measures a training loop: ``with Meter(...) as meter``, and inside it each step ``with meter.step()``."""

    def __init__(self, engine: Engine, world: World, first: int, steps: int) -> None:
        """The loop takes the steps ``first`` to before ``steps``."""
        self.engine, self.world, self.steps = engine, world, steps
        self.memory = Memory(world.device)
        self.counted = min(first + WARMUP_STEPS, steps) - 1
        """Step whose traffic and memory are counted: the last one of the warm-up, which is excluded from timings."""
        self.timeline = TimelineRecorder()
        self.traffic = Traffic(world, self.timeline)
        self.measures = first < steps
        """True if a step is left to count: not in a run that resumes at its last step."""
        self.seconds = 0.0
        """Duration of the last step."""
        self.wall_seconds = 0.0

    def __enter__(self) -> Self:
        """Start the clock; reset the peak memory, which loading may have set."""
        forget_peak(self.world.devices)
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wall_seconds = time.perf_counter() - self._begin

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step as a whole."""
        begin = time.perf_counter()
        yield
        self.seconds = time.perf_counter() - begin

    @contextmanager
    def count(self, number: int) -> Iterator[None]:
        """Count what this step holds and sends, once its batch is loaded, if it is the one to count."""
        if number != self.counted:
            yield
            return
        # Under a dispatch mode dynamo would skip the compiled frames, and never compile them again (pytorch #190286).
        with torch.compiler.set_stance("force_eager"), self.memory, self.traffic:
            self.timeline.begin()
            yield
            self.timeline.end()
            self.assign_kinds(number)
        self.engine.idle_fraction()  # the steps before include setup: measure from here on
        if number + 1 < self.steps:
            forget_peak(self.world.devices)  # counting itself uses memory

    def assign_kinds(self, number: int) -> None:
        """Assign the engine's tensors to kinds; call it also between backward and update, while there are gradients."""
        if number == self.counted:
            self.timeline.update()
            for kind, tensors in self.engine.tensors_by_kind().items():
                self.memory.name(kind, tensors)

    def report_timeline(self) -> dict[str, Any]:
        """Return the timeline, under the names of records/timeline.py; a collective."""
        local = self.engine.compute_spans() if self.world.rank < RANKS_SHOWN else None
        computed = [spans for devices in self.world.gather(local) for spans in devices or []]
        return {"step": self.counted, "computed": computed} | self.timeline.report(self.world)

    def figures(self) -> dict[str, Any]:
        """Return the measurements, under the names of TrainReport; a collective (memory of every rank)."""
        world, device = self.world, self.world.device
        idle = [fraction for fractions in world.gather(self.engine.idle_fraction()) for fraction in fractions or []]
        return {
            "wall_seconds": self.wall_seconds,
            "attention": self.memory.attention,
            "tensor_bytes": world.gather(self.memory.figures()) if self.measures else None,
            "traffic": self.traffic.report(world) if self.measures else None,
            "idle": (idle or None) if self.measures else None,
            "hosts": world.gather(os.uname().nodename),
            "cpus": world.gather(world.cpus),
            "devices": [name(device)],
            "peak_memory_bytes": world.gather(peak_memory(world.devices)) if self.measures else None,
            "peak_memory_kind": "process RSS" if device.type == "cpu" else "CUDA allocated",
        }
