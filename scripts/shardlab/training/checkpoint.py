"""Checkpoints of a running engine, whole or not there, and independent of the strategy that wrote them.

A checkpoint is a folder with the weights (model.safetensors), the optimizer's state under the parameters' names
(optimizer/, torch.distributed.checkpoint, which fits shards of one strategy to those of another) and state.json.
"""

import shutil
from collections import deque
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from pydantic import Field

from shardlab.errors import UserError
from shardlab.files import read_json, write_json
from shardlab.models import weights
from shardlab.schema import Strict, check
from shardlab.training.engine import Engine


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
