"""Batches of a training run: the samples of each step, and each rank's share of them."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from shardlab.data import order
from shardlab.runtime.device import Prefetch
from shardlab.runtime.distributed import World
from shardlab.runtime.engine import Engine
from shardlab.runtime.tasks import MicroBatch, Task
from shardlab.settings.recipe import Recipe


@dataclass(frozen=True)
class Step:
    """One optimizer step."""

    number: int
    """Counted from 0 over all epochs."""
    epoch: int
    samples: int
    targets: int
    """Targets in the whole global batch: the divisor of the loss."""
    learning_rate: float
    micro_batches: list[MicroBatch]
    """This rank's share of the samples."""
    seed: int
    """Seed of this rank's dropout masks."""
    validates: bool
    """True if the validation loss is measured after this step: at the end of an epoch, or of the training."""


class Steps:
    """The steps of a training run, each a function of its number."""

    def __init__(self, task: Task, engine: Engine, recipe: Recipe, seed: int, world: World) -> None:
        self.task, self.engine, self.recipe, self.world = task, engine, recipe, world
        self.order = order.BatchOrder(task.samples("train"), recipe.global_batch_size, seed)
        self.count = recipe.steps(self.order.steps_per_epoch)

    def __getitem__(self, number: int) -> Step:
        per_epoch, recipe = self.order.steps_per_epoch, self.recipe
        batch = self.order.batch(number)
        parts = recipe.global_batch_size, recipe.gradient_accumulation_steps
        return Step(
            number=number,
            epoch=number // per_epoch,
            samples=len(batch),
            targets=self.task.targets("train", batch),
            learning_rate=recipe.learning_rate(number, self.count, per_epoch),
            micro_batches=micro_batches(self.task, self.engine, "train", batch, *parts, self.world),
            seed=self._seed(number),
            validates=(number + 1) % per_epoch == 0 or number + 1 == self.count,
        )

    def _seed(self, number: int) -> int:
        """Derive the seed from (seed, step, part of the loss, stage), so that a resumed run draws the same masks.

        Ranks with the same activations draw the same masks, as tensor parallelism needs where tensors are whole (for
        split tensors, see parallel/tensor.py); stages hold different layers, which draw different ones.
        """
        entropy = (self.order.seed, number, self.world.loss_part, self.world.stage)
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])


class PrefetchLoader:
    """The steps in order; on a GPU, a thread prepares the next one while the device computes this one.

    The next step's batch is copied to the GPU on a separate stream. On a CPU, whose cores the training itself needs,
    steps are prepared on demand.
    """

    def __init__(self, steps: Steps, device: torch.device, *, prepare: bool | None = None) -> None:
        """``prepare``: use the thread (None: on a GPU)."""
        self.steps = steps
        self.prepare = device.type != "cpu" if prepare is None else prepare
        self._prefetch = Prefetch(device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: dict[int, Future[tuple[Step, Any]]] = {}

    def __getitem__(self, number: int) -> Step:
        """Return step ``number``, ready for the device's current stream."""
        if not self.prepare:
            return self.steps[number]
        waiting = self._next.pop(number, None)
        step, copied = waiting.result() if waiting else self._prepared(number)
        if number + 1 < self.steps.count:
            self._next = {number + 1: self._thread.submit(self._prepared, number + 1)}
        self._prefetch.ready([tensor for micro in step.micro_batches for tensor in micro.batch.values()], copied)
        return step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _prepared(self, number: int) -> tuple[Step, Any]:
        return self._prefetch.made(lambda: self.steps[number])


def micro_batches(
    task: Task,
    engine: Engine,
    split: str,
    batch: order.Indices,
    largest: int,
    count: int,
    world: World,
) -> list[MicroBatch]:
    """Split this rank's share of a global batch of at most ``largest`` samples into ``count`` micro-batches, of whose
    sequences each has this rank's part.
    """
    rows = None
    if engine.chunks:
        rows = engine.chunks * -(-largest // (world.data_size * count * engine.chunks))
    local = order.samples_of(batch, world.data_rank, world.data_size)
    return [task.micro_batch(split, indices, rows, world.sequence) for indices in order.parts(local, count)]
