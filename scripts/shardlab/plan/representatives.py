"""The ranks of a run that a plan simulates, and how many ranks each one represents."""

from types import SimpleNamespace
from typing import Any

from shardlab.data import order
from shardlab.models._sequence import first_part
from shardlab.runtime import batches
from shardlab.runtime.tasks import Task
from shardlab.settings.types import Run

COUNTED = 2
"""The step that a training also counts: the simulated batch has the same shapes."""


def sends_activations(run: Run) -> bool:
    """Return whether the bytes that a rank sends depend on its part of a batch.

    This holds where ranks compute parts of the same samples; a pipeline pads all parts to the same shapes.
    """
    return bool(run.mesh.axes("tensors", "sequence", "experts")) and not run.mesh.pipelined


def first_of_each_stage(run: Run) -> dict[int, int]:
    """Return {rank: number of ranks it represents}. The first rank has the largest part of batches and shards."""
    stages = run.mesh.stages
    distance = run.mesh.stride(*run.mesh.axes("layers")) if run.mesh.pipelined else 1
    return {stage * distance: run.world_size // stages for stage in range(stages)}


def first_of_each_part(run: Run, task: Task) -> dict[int, int]:
    """Return {rank: number of ranks whose parts of the counted batch have the same shapes}; for runs without a
    pipeline.
    """
    recipe = run.recipe
    of_all = order.BatchOrder(task.samples("train"), recipe.global_batch_size, run.seed)
    last = recipe.steps(of_all.steps_per_epoch) - 1
    batch = of_all.batch(min(COUNTED, last))
    plain: Any = SimpleNamespace(chunks=None)
    found: dict[Any, int] = {}
    weights: dict[int, int] = {}
    sequence = first_part(run)
    for part in range(run.mesh.data_size):
        place: Any = SimpleNamespace(data_rank=part, data_size=run.mesh.data_size, sequence=sequence)
        micro_batches = batches.micro_batches(
            task,
            plain,
            "train",
            batch,
            recipe.global_batch_size,
            recipe.gradient_accumulation_steps,
            place,
            by_length=recipe.length_buckets,
        )
        shapes = tuple(
            (micro.count, *(tuple(values.shape) for values in micro.batch.values())) for micro in micro_batches
        )
        rank = found.setdefault(shapes, run.mesh.first_rank(part))
        weights[rank] = weights.get(rank, 0) + run.world_size // run.mesh.data_size
    return weights
