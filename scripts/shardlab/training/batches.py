"""A rank's share of the samples."""

from shardlab.data import order
from shardlab.training.distributed import World
from shardlab.training.engine import Engine
from shardlab.training.tasks import MicroBatch, Task


def share(
    task: Task, engine: Engine, split: str, batch: order.Indices, largest: int, count: int, world: World
) -> list[MicroBatch]:
    """This rank's share of a global batch of at most ``largest`` samples, in ``count`` micro-batches."""
    rows = None
    if engine.chunks:
        rows = engine.chunks * -(-largest // (world.data_size * count * engine.chunks))
    mine = order.share(batch, world.data_rank, world.data_size)
    return [task.micro_batch(split, indices, rows) for indices in order.parts(mine, count)]
