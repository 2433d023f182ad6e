"""Test loss of weights under a run's own strategy, on all of its ranks."""

from pathlib import Path

from shardlab import strategies
from shardlab.records.reports import Evaluated
from shardlab.settings.types import Run
from shardlab.training import distributed, evaluation, tasks


def evaluate_sharded(run: Run, data: Path, weights: Path) -> Evaluated:
    """Loss per target of ``weights`` under the run's own strategy; a collective, the same on every rank."""
    world = distributed.world(run)
    task = tasks.of_run(run, data, world.device)
    engine = strategies.build(run, task, world, weights)
    distributed.limit_groups(run.site.hang_seconds)
    return evaluation.evaluate_sharded(run, engine, task, world)
