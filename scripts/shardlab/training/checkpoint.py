"""Checkpoints of a running engine, whole or not there, and independent of the strategy that wrote them.

A checkpoint is a folder with the weights (model.safetensors), the optimizer's state under the parameters' names
(optimizer/, torch.distributed.checkpoint, which fits shards of one strategy to those of another) and state.json.
"""

import shutil
from collections import deque
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field

from shardlab.errors import UserError
from shardlab.files import read_json, write_json
from shardlab.models import weights
from shardlab.schema import Strict, check
from shardlab.settings.types import Run
from shardlab.training.batches import Steps
from shardlab.training.distributed import World
from shardlab.training.engine import Engine
from shardlab.training.evaluation import mean_loss
from shardlab.training.step import train_step
from shardlab.training.tasks import Task


def save_whole(engine: Engine, path: Path, *, main: bool) -> None:
    """Write an engine's weights on the ``main`` rank; a collective.

    Raises:
        UserError: see ``weights.save``.
    """
    tensors = engine.weights()
    if main:
        weights.save(tensors, engine.layout, path)
    else:
        deque(tensors, maxlen=0)


class State(Strict):
    """state.json of a checkpoint: where the training stands."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    step: int = Field(description="Steps that were taken.")
    best: float | None = Field(description="Lowest validation loss so far, if one was measured.")
    workload: str = Field(description="Workload.")
    seed: int = Field(description="Seed: it gives the order of the samples that are left.")


def save_state(engine: Engine, folder: Path, state: State, *, main: bool) -> None:
    """Write a checkpoint in place of the one before; a collective. What stands there stays until the new one is whole.

    Raises:
        UserError: the disk is full or not writable.
    """
    new, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    if main:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        new.mkdir(parents=True)
    save_whole(engine, new / "model.safetensors", main=main)
    # Imported here: a second that runs without checkpoints do not need.
    from torch.distributed.checkpoint.state_dict_saver import save as save_sharded

    tensors = engine.optimizer_state() | {"format": torch.ones(())}  # plain SGD has no state at all
    save_sharded(tensors, checkpoint_id=new / "optimizer", no_dist=not dist.is_initialized())
    if main:
        write_json(new / "state.json", state.model_dump())
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


def read_state(folder: Path) -> State:
    """Where the training of a checkpoint stands.

    Raises:
        UserError: it is missing or damaged.
    """
    return check(
        State, read_json(folder / "state.json", "checkpoint", "name a folder that training wrote"), str(folder)
    )


def load_optimizer(engine: Engine, folder: Path) -> None:
    """Read a checkpoint's optimizer state into an engine that has taken a step; a collective.

    Raises:
        UserError: it is of another model or another optimizer, or damaged.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load as load_sharded

    tensors = engine.optimizer_state() | {"format": torch.ones(())}
    try:
        load_sharded(tensors, checkpoint_id=folder / "optimizer", no_dist=not dist.is_initialized())
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{folder / 'optimizer'} cannot be read into this run ({str(error).splitlines()[0]}); continue with the "
            "model and the optimizer that wrote it."
        ) from error
    engine.restored(tensors)


def restore(run: Run, engine: Engine, steps: Steps, folder: Path | None, world: World) -> State:
    """Read a checkpoint's optimizer into an engine that has its weights; returns where the training stands.

    Without a checkpoint that is the beginning.

    Raises:
        UserError: the checkpoint is damaged, of another workload, seed or optimizer, or has all steps behind it.
    """
    if folder is None:
        return State(step=0, best=None, **_origin(run))
    state = read_state(folder)
    if (theirs := {"workload": state.workload, "seed": state.seed}) != _origin(run):
        raise UserError(f"{folder} is a checkpoint of {theirs}, this run is {_origin(run)}; resume with the same.")
    if state.step >= steps.count:
        raise UserError(
            f"{folder} stands at step {state.step} of {steps.count}, so nothing is left; raise recipe.max_steps."
        )
    # A step that changes nothing makes the optimizer's tensors, whatever engine it is.
    train_step(engine, steps.nothing(), world)
    load_optimizer(engine, folder)
    return state


def _origin(run: Run) -> dict[str, Any]:
    """What a checkpoint must share with the run that resumes from it."""
    return {"workload": run.workload, "seed": run.seed}


class Checkpointer:
    """Validates one run and writes its weights and checkpoints; every method is a collective."""

    def __init__(self, run: Run, task: Task, engine: Engine, world: World, output: Path, best: float | None) -> None:
        """``best`` is the lowest validation loss so far, None at the start."""
        self.run, self.task, self.engine, self.world, self.output = run, task, engine, world, output
        self.best = best
        self.written = 0

    def validate(self) -> float:
        """Loss per target over the validation split; with recipe.keep_best, the best weights are written."""
        recipe = self.run.recipe
        loss = mean_loss(self.task, self.engine, "validation", recipe.evaluation_batch, self.world)
        if recipe.keep_best and (self.best is None or loss < self.best):
            self.best = loss
            self.save("best.safetensors")
        return loss

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after ``step`` steps."""
        every = self.run.recipe.checkpoint_every
        return every is not None and step % every == 0

    def checkpoint(self, step: int) -> None:
        """Write what a training needs to resume after ``step`` steps, in place of the checkpoint before."""
        state = State(step=step, best=self.best, **_origin(self.run))
        save_state(self.engine, self.output / "checkpoint", state, main=self.world.main)
        self.written += 1

    def save(self, name: str) -> None:
        """Write the whole weights (rank 0)."""
        save_whole(self.engine, self.output / name, main=self.world.main)
        self.written += 1
