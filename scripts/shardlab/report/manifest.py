"""The folders of checkpoints: which are whole, and the manifest that says so.

A checkpoint is valid when its manifest is there, which is written last, and every file that it names has the size and
SHA-256 that it gives.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shardlab.errors import UserError
from shardlab.files import sha256, sync, sync_all
from shardlab.report.records import Report
from shardlab.schema import Strict
from shardlab.settings.identity import Identity

NAME = "manifest.json"
AGAIN = "remove the folder, and the one before it is taken"


class File(Strict):
    """A file of a checkpoint."""

    bytes: int = Field(description="Its size.")
    sha256: str = Field(description="SHA-256 of its content.")


class Manifest(Report):
    """manifest.json of a checkpoint: where the training stands, and what it consists of."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    step: int = Field(ge=0, description="Steps that were taken.")
    best: float | None = Field(description="Lowest validation loss so far, if one was measured.")
    skipped: int = Field(0, description="Steps that were skipped, as loss or gradient was not finite.")
    identity: Identity = Field(description="Which run this belongs to.")
    settings: dict[str, Any] = Field(description="run.json as it is trained with.")
    training: dict[str, Any] = Field(description="What a run that goes on must share: settings and data.")
    world_size: int = Field(description="Ranks that wrote it.")
    files: dict[str, File] = Field(description="Its files.")


def place(output: Path, step: int) -> Path:
    """Folder of the checkpoint of a run after so many steps."""
    return output / "checkpoints" / f"step-{step:08d}"


def saved(output: Path) -> list[Path]:
    """Folders of a run's checkpoints that have a manifest, the newest first."""
    folders = (output / "checkpoints").glob("step-*")
    whole = [path for path in folders if re.fullmatch(r"step-\d+", path.name) and (path / NAME).is_file()]
    return sorted(whole, key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    """Steps that had been taken, by the folder's name."""
    return int(folder.name.removeprefix("step-"))


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there, in their sizes.

    Raises:
        UserError: it is missing or damaged, or a file is missing or of another size.
    """
    manifest = Manifest.read(folder / NAME, AGAIN)
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing from its checkpoint; {AGAIN}.")
        if (found := path.stat().st_size) != file.bytes:
            raise UserError(f"{path} has {found} bytes, and its manifest says {file.bytes}; {AGAIN}.")
    return manifest


def damage(folder: Path, manifest: Manifest, names: Iterable[str]) -> str | None:
    """What is wrong with the content of some of a checkpoint's files, as a sentence; None if nothing is."""
    for name in names:
        try:
            found = sha256(folder / name)
        except OSError as error:
            return f"{folder / name} cannot be read ({error.strerror}); {AGAIN}."
        if found != manifest.files[name].sha256:
            return f"{folder / name} is not what was written (its SHA-256 does not fit); {AGAIN}."
    return None


def publish(new: Path, folder: Path, manifest: Manifest) -> None:
    """Make the folder ``new``, whose other files are whole, the checkpoint ``folder``."""
    manifest.write(new / NAME)
    sync_all(new)
    if folder.exists():
        remove(folder)
    new.rename(folder)
    sync(folder.parent)


def prune(output: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and what a killed process left of one."""
    for folder in saved(output)[keep:]:
        remove(folder)
    for path in (output / "checkpoints").iterdir():
        if path.is_dir() and not (path / NAME).is_file():
            shutil.rmtree(path, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a checkpoint, its manifest first: what a kill leaves of it counts for nothing."""
    (folder / NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
