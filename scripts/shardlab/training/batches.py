"""The batches of a training run: what each step trains on, and a rank's share of it."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from shardlab.data import order
from shardlab.settings.recipe import Recipe
from shardlab.training.device import Prefetch
from shardlab.training.distributed import World
from shardlab.training.engine import Engine
from shardlab.training.tasks import MicroBatch, Task


@dataclass(frozen=True)
class Step:
    """One optimizer step."""

    number: int
    """Counted from 0 over all epochs."""
    epoch: int
    samples: int
    targets: int
    """Of the whole global batch: what the loss is divided by."""
    learning_rate: float
    micro_batches: list[MicroBatch]
    """This rank's share of the samples."""
    seed: int
    """Of this rank's dropout masks."""
    validates: bool
    """Whether the validation loss is measured after it: it ends an epoch, or the training."""


class Steps:
    """The steps of a training run, each a function of its number."""

    def __init__(self, task: Task, engine: Engine, recipe: Recipe, seed: int, world: World) -> None:
        self.task, self.engine, self.recipe, self.world = task, engine, recipe, world
        self.order = order.BatchOrder(task.samples("train"), recipe.global_batch, seed)
        self.count = min(recipe.epochs * self.order.steps_per_epoch, recipe.max_steps or 2**63)

    def __getitem__(self, number: int) -> Step:
        """The step of that number."""
        per_epoch = self.order.steps_per_epoch
        batch = self.order.batch(number)
        return Step(
            number=number,
            epoch=number // per_epoch,
            samples=len(batch),
            targets=self.task.targets("train", batch),
            learning_rate=self.recipe.learning_rate(number, self.count, per_epoch),
            micro_batches=self._mine(batch),
            seed=self._seed(number),
            validates=(number + 1) % per_epoch == 0 or number + 1 == self.count,
        )

    def nothing(self) -> Step:
        """A step that changes nothing: no sample, learning rate 0."""
        none = self.order.batch(0)[:0]
        return Step(-1, 0, 0, 1, 0.0, self._mine(none), 0, validates=False)

    def _seed(self, number: int) -> int:
        """Follows from (seed, step, data rank), so that a run that goes on draws the same masks.

        Ranks that share samples draw the same, as tensor parallelism needs where tensors are whole (where they are
        split, see strategies/tensor.py); stages hold different layers, which draw different ones.
        """
        entropy = (self.order.seed, number, self.world.data_rank, self.world.stage)
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])

    def _mine(self, batch: order.Indices) -> list[MicroBatch]:
        recipe = self.recipe
        parts = recipe.global_batch, recipe.accumulate
        return micro_batches(
            self.task, self.engine, "train", batch, *parts, self.world, by_length=recipe.length_buckets
        )


class Ahead:
    """The steps in their order, the next one prepared by a thread while the device is at this one.

    On a GPU it is copied there on a stream of its own. On a CPU, whose cores the training itself uses, a step is
    prepared when it is asked for.
    """

    def __init__(self, steps: Steps, device: torch.device, *, prepare: bool | None = None) -> None:
        """``prepare`` says whether there is such a thread (None: on a GPU)."""
        self.steps = steps
        self.prepare = device.type != "cpu" if prepare is None else prepare
        self._prefetch = Prefetch(device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: dict[int, Future[tuple[Step, Any]]] = {}

    def __getitem__(self, number: int) -> Step:
        """The step of that number, ready for the device's current stream."""
        if not self.prepare:
            return self.steps[number]
        waiting = self._next.pop(number, None)
        step, copied = waiting.result() if waiting else self._prepared(number)
        if number + 1 < self.steps.count:
            self._next = {number + 1: self._thread.submit(self._prepared, number + 1)}
        self._prefetch.ready([tensor for micro in step.micro_batches for tensor in micro.batch.values()], copied)
        return step

    def __enter__(self) -> Self:
        """For ``with``."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread."""
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
    *,
    by_length: bool = False,
) -> list[MicroBatch]:
    """This rank's share of a global batch of at most ``largest`` samples, in ``count`` micro-batches.

    ``by_length``: those of about the same length together, where the task has samples of different lengths.
    """
    rows = None
    if engine.chunks:
        rows = engine.chunks * -(-largest // (world.data_size * count * engine.chunks))
    mine = order.samples_of(batch, world.data_rank, world.data_size)
    if by_length and (lengths := task.lengths(split, mine)) is not None:
        mine = mine[np.argsort(lengths, kind="stable")]
    return [task.micro_batch(split, indices, rows) for indices in order.parts(mine, count)]
