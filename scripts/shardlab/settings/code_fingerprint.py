"""Digests of the code that determines a run's numbers, which Snakemake cannot see behind ``shell:``.

The digests are part of run.json, so changed code is changed settings: it prepares, draws and trains again what comes
from it. They are one of each room whose code a training imports, and one of the model's and the reader's own file.
Comments, docstrings and layout do not count.

Files can be edited after that: the processes that compute compare their code with these digests.
"""

import ast
import hashlib
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import ROOT
from shardlab.settings import registry, scripts
from shardlab.settings.types import Run

PACKAGE = ROOT / "scripts/shardlab"
COMPUTES = ("mesh", "pipeline_schedules", "precisions", "recipe")
ROOMS = {
    "data": ["**/*.py"],
    "models": ["**/*.py"],
    "parallel": ["**/*.py"],
    "patches": ["deepspeed_*.py", "torch_*.py", "transformers_*.py"],
    "runtime": ["**/*.py"],
    "settings": [f"{name}.py" for name in COMPUTES],
    "train": ["**/*.py"],
}
"""Folder: its files that decide what a training computes; the rest checks, starts, measures, reports."""
OF_OTHERS = "data/hub_download.py"
"""Fills data/raw, whose files have digests of their own."""


def model_sources(name: str, *, transformers: bool) -> dict[str, str]:
    """Return the digest of a model's own file."""
    return {} if transformers else _own(f"models/{name}.py")


def data_sources(reader: str) -> dict[str, str]:
    """Return the digests of the code that reads, encodes and writes a data set."""
    return _rooms("data") | _own(f"data/{reader}.py")


def training_sources(run: Run) -> dict[str, str]:
    """Return the digests of the code that trains a run, without its model; or those of its script."""
    return scripts.digests(run.script) if run.script else _rooms(*ROOMS)


def check_unchanged(*sources: Mapping[str, str]) -> None:
    """Check that the code is the one that a run.json names.

    A process that was forked compares what was there when the first one called ``digest_all``.

    Raises:
        UserError: a file was edited in between.
    """
    for path, digest in chain.from_iterable(each.items() for each in sources):
        name = path.removeprefix("scripts/shardlab/")
        if name == path:  # a script's own file, which is compared where it runs
            continue
        if (_room(name) if name in ROOMS else _own(name).get(path)) != digest:
            raise UserError(
                f"{path} was edited since this run's settings were resolved, so its results would be those of other "
                "code; run the same command again, which trains what the edit changes."
            )


def digest_all() -> None:
    """Compute the digests of all rooms, so that forks of this process need not."""
    _rooms(*ROOMS)


def _rooms(*names: str) -> dict[str, str]:
    return {f"scripts/shardlab/{name}": _room(name) for name in names}


def _own(name: str) -> dict[str, str]:
    return {f"scripts/shardlab/{name}": _digest(PACKAGE / name)} if (PACKAGE / name).is_file() else {}


@cache
def _room(name: str) -> str:
    """Return the digest of a room's files, without those of models and readers, of which a run has one."""
    folder = PACKAGE / name
    paths = sorted({path for pattern in ROOMS[name] for path in folder.glob(pattern)} - {PACKAGE / OF_OTHERS})
    kept = [path for path in paths if not (path.parent == folder and _is_own(path))]
    text = "".join(f"{path.relative_to(folder)} {_digest(path)}\n" for path in kept)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_own(path: Path) -> bool:
    """Return whether a file is that of a model or reader."""
    words = {"models": registry.FOLDERS["model"][1], "data": registry.FOLDERS["reader"][1]}.get(path.parent.name)
    return words is not None and not path.name.startswith("_") and words in path.read_text(encoding="utf-8")


@cache
def _digest(path: Path) -> str:
    tree = scripts.syntax_tree(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]
