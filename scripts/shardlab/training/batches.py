"""The batches of a training run: what each step trains on, and a rank's share of it."""

from dataclasses import dataclass

import numpy as np

from shardlab.data import order
from shardlab.settings.recipe import Recipe
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
        return micro_batches(self.task, self.engine, "train", batch, recipe.global_batch, recipe.accumulate, self.world)


def micro_batches(
    task: Task, engine: Engine, split: str, batch: order.Indices, largest: int, count: int, world: World
) -> list[MicroBatch]:
    """This rank's share of a global batch of at most ``largest`` samples, in ``count`` micro-batches."""
    rows = None
    if engine.chunks:
        rows = engine.chunks * -(-largest // (world.data_size * count * engine.chunks))
    mine = order.samples_of(batch, world.data_rank, world.data_size)
    return [task.micro_batch(split, indices, rows) for indices in order.parts(mine, count)]
