"""Test loss of weights: on one device, or under a run's own strategy on all of its ranks."""

from pathlib import Path

from shardlab import strategies
from shardlab.records.reports import Evaluated
from shardlab.settings.types import Run
from shardlab.training import distributed, evaluation, tasks


def evaluate(run: Run, data: Path, weights: Path) -> Evaluated:
    """Loss per target and metric of ``weights``, computed as the run says; a collective if that is sharded."""
    return (evaluate_sharded if run.evaluated_sharded else evaluation.evaluate)(run, data, weights)


def evaluate_sharded(run: Run, data: Path, weights: Path) -> Evaluated:
    """Loss per target of ``weights`` under the run's own strategy; a collective, the same on every rank."""
    world = distributed.world(run)
    task = tasks.of_run(run, data, world.device)
    engine = strategies.build(run, task, world, weights)
    distributed.limit_groups(run.site.hang_seconds)
    return evaluation.evaluate_sharded(run, engine, task, world)
