"""Strategies: one file per technique. ``build`` gives the engine that train.py drives, whatever is inside."""

from pathlib import Path

from shardlab.settings.types import Run
from shardlab.training.distributed import World
from shardlab.training.engine import Engine
from shardlab.training.tasks import Task


def build(run: Run, task: Task, world: World, weights: Path) -> Engine:
    """The engine of a run's strategy, with the weights in a file, the same on every rank.

    Raises:
        UserError: the file is missing, damaged or of another model.
    """
    # A strategy's imports take seconds: load only what this run uses.
    if run.engine == "deepspeed":
        from shardlab.strategies.zero import ZeroEngine

        return ZeroEngine(run, task, world, weights)
    if run.mesh.pipelined:
        from shardlab.strategies.pipeline import PipelineEngine

        return PipelineEngine(run, task, world, weights)
    if run.options.one_process == "mp":
        from shardlab.strategies.model_parallel import ModelParallelEngine

        return ModelParallelEngine(run, task, world, weights)
    from shardlab.strategies.native import NativeEngine

    return NativeEngine(run, task, world, weights)
