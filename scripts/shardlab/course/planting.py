"""A copy of the project with one fault in it, for the learner to find."""

import ast
import shutil
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from shardlab.errors import UserError
from shardlab.files import ROOT


@dataclass(frozen=True)
class Planted:
    """A fault of tests/mutants, and what its copy shows."""

    name: str
    strategies: tuple[str, ...]
    """Those that are not equal to `single`."""
    cause: str
    """That the diagnosis names first."""


FAULTS = (
    Planted("DDP never synchronizes", ("ddp",), "not reduced"),
    Planted("bias of a row layer added by every rank", ("tp",), "bias"),
    Planted("norm for clipping of the local shard alone", ("fsdp", "tp"), "norm of some"),
    Planted("clip factor times the square root of the ranks", ("ddp", "fsdp", "tp"), "clip"),
    Planted("twice the rate under tensor parallelism", ("tp",), "factor of updates"),
    Planted("gradients summed over the ranks, not averaged", ("ddp", "fsdp"), "factor"),
)
"""Faults of parallel strategies alone: what `single` of the same copy also has, no comparison with it finds."""
COPIED = ("Snakefile", "config", "docs", "envs", "examples", "pyproject.toml", "scripts", "workflow")
NUMBER = ".planted"
"""File of the copy with the number of its fault."""


def fault(number: int) -> Any:
    """Return a fault, as tests/mutants defines it.

    Raises:
        UserError: there is none of that number.
    """
    if not 1 <= number <= len(FAULTS):
        raise UserError(f"there is no fault {number}; plant one of 1 to {len(FAULTS)}.")
    return next(each for each in _mutants() if each.name == FAULTS[number - 1].name)


def plant(number: int, folder: Path) -> None:
    """Copy the project and put a fault into the copy; of the project itself, nothing changes.

    Raises:
        UserError: the folder is not empty and is no earlier copy, or there is no fault of that number.
    """
    planted = fault(number)
    if folder.exists() and not (folder / NUMBER).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is no copy with a fault; name another folder with --folder.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        else:
            shutil.copy2(ROOT / name, folder / name)
    path = folder / planted.file
    path.write_text(planted.put_into((ROOT / planted.file).read_text(encoding="utf-8")), encoding="utf-8")
    (folder / NUMBER).write_text(f"{number}\n", encoding="utf-8")


def number_of(folder: Path) -> int:
    """Return the number of the fault in a copy.

    Raises:
        UserError: the folder is no such copy.
    """
    try:
        return int((folder / NUMBER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{folder} is no copy with a fault; make one with: shardlab lesson 6 --plant 1.") from None


def repaired(folder: Path) -> bool:
    """Return whether the file with the fault is again that of the project, but for comments and layout."""
    file = fault(number_of(folder)).file
    texts = [(where / file).read_text(encoding="utf-8") for where in (ROOT, folder)]
    try:
        mine, theirs = (ast.dump(ast.parse(text)) for text in texts)
    except SyntaxError:
        return False
    return mine == theirs


def _mutants() -> Any:
    """Return the faults of tests/mutants, whose files import each other by their names alone."""
    folder = str(ROOT / "tests/mutants")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module("faults").FAULTS
