"""Where a script's run has its files: the folder that the script writes to, and what is measured of its ranks."""

import shutil
from pathlib import Path
from typing import Any

from shardlab.errors import UserError
from shardlab.files import read_json
from shardlab.records.script_lines import DUMPS, has_dumps

OUTPUT, CHECKPOINTS = "script", "checkpoints"
"""Folder in a run's folder that is the script's own; one in it that the script may write, as ``DUMPS``."""
WEIGHTS = "model.safetensors"
MEASURED = ".ranks"
"""Folder in a run's folder with a file per rank that ended."""


def clear(folder: Path) -> None:
    """Prepare a run's folder for an attempt: of what earlier ones wrote, the script's checkpoints remain."""
    output = folder / OUTPUT
    output.mkdir(parents=True, exist_ok=True)
    for path in output.iterdir():
        if path.name != CHECKPOINTS:
            remove(path)
    remove(folder / MEASURED)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def has_checkpoints(folder: Path) -> bool:
    """Return whether the script of a run's folder left anything in its folder of checkpoints."""
    place = folder / OUTPUT / CHECKPOINTS
    return place.is_dir() and any(place.iterdir())


def copy_dumps(folder: Path, target: Path, script: str) -> None:
    """Copy what a script's training dumped of its first steps.

    Raises:
        UserError: it dumped nothing.
    """
    dumps = folder / OUTPUT / DUMPS
    if not has_dumps(dumps):
        raise UserError(
            f"{dumps} has no dumps of the first steps; train inside `with dump(model, OUTPUT / '{DUMPS}')` in {script} "
            "(docs/your-own.md), then run the same command again."
        )
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(dumps, target)


def read_measured(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Return what was measured of each rank; empty if a rank's is missing."""
    try:
        return [read_json(folder / MEASURED / f"{rank}.json", "measurements", "train again") for rank in range(ranks)]
    except UserError:
        return []
