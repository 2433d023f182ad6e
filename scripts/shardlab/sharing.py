"""A rank's share of the samples, and the mean loss that all shares make."""

import torch

from shardlab.data import order
from shardlab.distributed import World
from shardlab.strategies import Engine
from shardlab.tasks import MicroBatch, Task


def share(
    task: Task, engine: Engine, split: str, batch: order.Indices, largest: int, count: int, world: World
) -> list[MicroBatch]:
    """This rank's share of a global batch of at most ``largest`` samples, in ``count`` micro-batches."""
    rows = None
    if engine.chunks:
        rows = engine.chunks * -(-largest // (world.data_size * count * engine.chunks))
    mine = order.share(batch, world.data_rank, world.data_size)
    return [task.micro_batch(split, indices, rows) for indices in order.parts(mine, count)]


@torch.no_grad()
def mean_loss(task: Task, engine: Engine, split: str, batch_size: int, world: World) -> float:
    """Loss per target over a whole split, each sample once, shared by the data-parallel ranks."""
    engine.train(False)
    batches = order.in_order(task.samples(split), batch_size)
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for batch in batches:
        for micro in share(task, engine, split, batch, batch_size, 1, world):
            total += engine.loss(micro)
    engine.train(True)
    return float(world.sum(total)) / sum(task.targets(split, batch) for batch in batches)
