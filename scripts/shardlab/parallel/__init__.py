"""Strategies, one file per technique. ``build`` returns the engine that train.py drives."""

from importlib import import_module
from pathlib import Path

from shardlab.runtime.distributed import World
from shardlab.runtime.engine import Engine
from shardlab.runtime.tasks import Task
from shardlab.settings.types import Run

ENGINES = {
    "native": "NativeEngine",
    "model_parallel": "ModelParallelEngine",
    "pipeline": "PipelineEngine",
    "zero": "ZeroEngine",
}
"""File: its engine (see Run.engine_file)."""


def build(run: Run, task: Task, world: World, weights: Path | None) -> Engine:
    """Build the engine of a run's strategy, with the weights in a file, the same on every rank.

    Without a file the parameters have no memory yet (only PyTorch's own engines; see NativeEngine).

    Raises:
        UserError: the file is missing, damaged or belongs to another model.
    """
    # A strategy's imports take seconds: load only what this run uses.
    module = import_module(f"shardlab.parallel.{run.engine_file}")
    engine: Engine = getattr(module, ENGINES[run.engine_file])(run, task, world, weights)
    return engine
