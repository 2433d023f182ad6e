"""The folders of checkpoints: which are whole, and the manifest that says so.

A checkpoint is valid if its manifest exists, which is written last, and every file named there has the size and SHA-256
given there.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shardlab.errors import UserError
from shardlab.files import sha256, sync, sync_all
from shardlab.records.reports import Report
from shardlab.schema import Strict
from shardlab.settings.run_identity import Identity

NAME = "manifest.json"
REMEDY = "remove the folder to use the previous checkpoint"


class File(Strict):
    """A file of a checkpoint."""

    bytes: int = Field(description="Size of the file.")
    sha256: str = Field(description="SHA-256 of the content.")


class Manifest(Report):
    """Manifest of a checkpoint: the state of the training, and the checkpoint's files."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    step: int = Field(ge=0, description="Number of steps taken.")
    best: float | None = Field(description="Lowest validation loss so far, if one was measured.")
    skipped: int = Field(0, description="Steps that the loss scaler of fp16 skipped: an infinite gradient.")
    identity: Identity = Field(description="Run that this belongs to.")
    settings: dict[str, Any] = Field(description="run.json of the training.")
    training: dict[str, Any] = Field(description="Settings and data that a resuming run must share.")
    world_size: int = Field(description="Number of ranks that wrote it.")
    files: dict[str, File] = Field(description="Files of the checkpoint.")


def place(output: Path, step: int) -> Path:
    """Return the folder of a run's checkpoint after ``step`` steps."""
    return output / "checkpoints" / f"step-{step:08d}"


def saved(output: Path) -> list[Path]:
    """Return the folders of a run's checkpoints that have a manifest, newest first."""
    folders = (output / "checkpoints").glob("step-*")
    complete = [path for path in folders if re.fullmatch(r"step-\d+", path.name) and (path / NAME).is_file()]
    return sorted(complete, key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    """Return the number of steps taken, from the folder's name."""
    return int(folder.name.removeprefix("step-"))


def read(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint whose files all exist with the right sizes.

    Raises:
        UserError: it is missing or damaged, or a file is missing or of another size.
    """
    manifest = Manifest.read(folder / NAME, REMEDY)
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing from its checkpoint; {REMEDY}.")
        if (size := path.stat().st_size) != file.bytes:
            raise UserError(f"{path} has {size} bytes, but its manifest says {file.bytes}; {REMEDY}.")
    return manifest


def damage(folder: Path, manifest: Manifest, names: Iterable[str]) -> str | None:
    """Return an error message if some of a checkpoint's files are damaged; None if they are not."""
    for name in names:
        try:
            digest = sha256(folder / name)
        except OSError as error:
            return f"{folder / name} cannot be read ({error.strerror}); {REMEDY}."
        if digest != manifest.files[name].sha256:
            return f"{folder / name} has changed since it was written (SHA-256 mismatch); {REMEDY}."
    return None


def publish(new: Path, folder: Path, manifest: Manifest) -> None:
    """Turn the folder ``new``, whose other files are complete, into the checkpoint ``folder``."""
    manifest.write(new / NAME)
    sync_all(new)
    if folder.exists():
        remove(folder)
    new.rename(folder)
    sync(folder.parent)


def prune(output: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and incomplete ones of a killed process."""
    for folder in saved(output)[keep:]:
        remove(folder)
    _remove_incomplete(output)


def sweep(output: Path) -> None:
    """Remove what killed processes left of checkpoints and weights; nothing may be writing to ``output``."""
    _remove_incomplete(output)
    for path in output.glob(".*.safetensors.*.tmp"):  # of files.write_atomic
        path.unlink(missing_ok=True)


def _remove_incomplete(output: Path) -> None:
    """Remove folders that are not checkpoints, also one that has its manifest but not its name."""
    complete = saved(output)
    for path in (output / "checkpoints").glob("*"):
        if path.is_dir() and path not in complete:
            remove(path)


def remove(folder: Path) -> None:
    """Remove a checkpoint, its manifest first, so that a kill leaves no valid part of it."""
    (folder / NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
