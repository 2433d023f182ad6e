"""Checkpoints of a running engine; resume.py reads them.

A checkpoint is a folder of safetensors files: each rank writes its own shards of weights and optimizer state, under the
parameters' names (torch.distributed.checkpoint, which reshards between strategies), and what only that rank has. The
manifest (records/manifest.py) makes it valid. It contains no pickles.
"""

import re
import shutil
import time
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from shardlab.errors import UserError
from shardlab.files import link, sha256
from shardlab.models import weights
from shardlab.records import manifest
from shardlab.records.manifest import File, Manifest
from shardlab.runtime.distributed import World
from shardlab.runtime.engine import Engine
from shardlab.runtime.tasks import Task
from shardlab.settings.types import Run
from shardlab.train.evaluation import check_finite, mean_loss

BEST = "best.safetensors"


class Checkpointer:
    """Validates one run and writes its weights and checkpoints; every method is a collective."""

    def __init__(self, run: Run, task: Task, engine: Engine, world: World, output: Path, start: Manifest) -> None:
        """``start`` is the state at which training starts (see resume.restore)."""
        self.run, self.task, self.engine, self.world, self.output = run, task, engine, world, output
        self.start, self.best, self.skipped = start, start.best, start.skipped
        self.written, self._last = 0, time.monotonic()
        if world.is_rank0:
            manifest.sweep(output)
        if run.site.container:
            # When a job is killed, the program that serves the image's file system may end before the ranks.
            _rehearse()

    def validate(self) -> float:
        """Return the loss per target over the validation split; with recipe.keep_best, write the weights if it is the
        best.

        Raises:
            UserError: it is not finite.
        """
        recipe = self.run.recipe
        loss = mean_loss(self.task, self.engine, "validation", recipe.eval_batch_size, self.world)
        check_finite(self.run, "validation", loss)
        if recipe.keep_best and (self.best is None or loss < self.best):
            self.best = loss
            self.save(BEST)
        return loss

    def interval_elapsed(self) -> bool:
        """Return whether the checkpoint interval has passed by rank 0's clock; False on other ranks."""
        minutes = self.run.recipe.checkpoint_interval_minutes
        return self.world.is_rank0 and minutes is not None and time.monotonic() - self._last > 60 * minutes

    def due_at_step(self, step: int) -> bool:
        """Return whether a checkpoint is due after ``step`` steps, by their number."""
        every = self.run.recipe.checkpoint_interval_steps
        return every is not None and step % every == 0

    def checkpoint(self, step: int) -> None:
        """Write what training needs to resume after ``step`` steps; once all ranks have, rank 0 makes it valid.

        Raises:
            UserError: it could not be written; nothing of it is left, and the previous one is kept.
        """
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        kinds = {
            "weights": self.engine.weights_state(to_write=True),
            "optimizer": self.engine.optimizer_state(to_write=True),
        }
        tensors = {
            f"{kind}/{name}": weights.in_one_piece(value)
            for kind, state in kinds.items()
            for name, value in state.items()
        }
        folder = manifest.place(self.output, step)
        new = folder.with_name(f".{folder.name}.new")
        if self.world.is_rank0:
            shutil.rmtree(new, ignore_errors=True)
            (new / "shards").mkdir(parents=True, exist_ok=True)
            if self.run.recipe.keep_best and self.best is not None:
                link(self.output / BEST, new / BEST)
        self.world.gather(None)  # until rank 0 has made the folder
        writer = HuggingFaceStorageWriter(str(new / "shards"), save_distributed=True)
        try:
            save(tensors, storage_writer=writer, no_dist=self.world.size == 1)
        except CheckpointException as error:
            self._refuse(new, next(iter(error.failures.values()))[0], tensors)
        own = [*(new / "shards").glob(f"shard-{self.world.rank + 1:05d}-*")]
        if self.world.is_rank0 and (new / BEST).exists():
            own.append(new / BEST)
        files = {str(path.relative_to(new)): File(bytes=path.stat().st_size, sha256=sha256(path)) for path in own}
        every = {name: file for files in self.world.gather(files) for name, file in files.items()}
        if self.world.is_rank0:
            state = {"step": step, "best": self.best, "skipped": self.skipped, "files": every}
            try:
                manifest.publish(new, folder, self.start.model_copy(update=state))
                manifest.prune(self.output, self.run.recipe.keep_last_checkpoints)
            except (OSError, UserError) as error:
                self._refuse(new, error, tensors)
        self.written, self._last = self.written + 1, time.monotonic()

    def _refuse(self, new: Path, error: BaseException, tensors: dict[str, Tensor]) -> None:
        """Remove what was written of the checkpoint, then raise the error."""
        if self.world.is_rank0:
            shutil.rmtree(new, ignore_errors=True)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "run the same command again"
        if re.search("no space|quota", str(error), re.IGNORECASE):
            # Don't ask for the files' sizes: rank 0 removes the files.
            size = sum(tensor.nbytes for tensor in tensors.values())
            reason += f"; it needs at least {size / 2**20:.1f} MiB of free space and quota"
            remedy = f"make room, then {remedy}"
        raise UserError(
            f"a checkpoint could not be written to {new.parent} ({reason}). The previous one is kept; {remedy}."
        ) from error

    def save(self, name: str, *, averaged: bool = False) -> str | None:
        """Write the whole weights, or their averages; return the SHA-256 on rank 0.

        Raises:
            UserError: see ``weights.save``.
        """
        self.written += 1
        tensors = self.engine.averaged_weights() if averaged else self.engine.weights()
        if self.world.is_rank0:
            return weights.save(tensors, self.engine.meta_state_dict, self.output / name)
        deque(tensors, maxlen=0)
        return None


def _rehearse() -> None:
    """Write an empty checkpoint, so that all code needed to write one is loaded."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.tensor import DTensor  # noqa: F401

    with TemporaryDirectory() as folder:
        writer = HuggingFaceStorageWriter(folder, save_distributed=True)
        save({"nothing": torch.zeros(1)}, storage_writer=writer, no_dist=True)
