"""Digests of the code that determines a run's numbers, which Snakemake cannot see behind ``shell:``.

The digests are part of run.json, so changed code is changed settings: it prepares, draws and trains again what comes
from it. They are one of each room whose code a training imports, and one of the model's and the reader's own file; or
those of a script and of the files that it needs. Comments and layout do not count.

Files can be edited after that: the processes that compute compare their code with these digests.
"""

import ast
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import ROOT
from shardlab.settings import registry
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


GENERATED = ("data", "results", ".snakemake")
"""Folders with files that a script may name, and that are no part of it."""
LONGEST = 200
"""Characters of a text that may be the name of a file."""


def model_sources(name: str, *, transformers: bool) -> dict[str, str]:
    """Return the digest of a model's own file."""
    return {} if transformers else _own(f"models/{name}.py")


def data_sources(reader: str) -> dict[str, str]:
    """Return the digests of the code that reads, encodes and writes a data set."""
    return _rooms("data") | _own(f"data/{reader}.py")


def training_sources(run: Run) -> dict[str, str]:
    """Return the digests of the code that trains a run, without its model; or those of its script."""
    return of_script(run.script) if run.script else _rooms(*ROOMS)


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
    return hashlib.sha256(ast.dump(_tree(path)).encode()).hexdigest()[:16]


def _tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file of Python.

    Raises:
        UserError: it is none.
    """
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path.relative_to(ROOT)} is not Python: {error}; fix it there.") from None


def check_script(script: str, where: str) -> None:
    """Check that a script can be started: a file in the project, executable unless it is Python.

    Raises:
        UserError: it cannot.
    """
    path = ROOT / script
    if not path.resolve().is_relative_to(ROOT):
        raise UserError(
            f"{where}: script {script} is outside of the project; copy it into the project, and write its path from "
            "the project's root."
        )
    if not path.is_file():
        raise UserError(
            f"{where}: script {script} is not a file; write its path from the project's root, or run python "
            "scripts/course.py, which writes those of the course."
        )
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise UserError(f"{where}: script {script} is not executable; run: chmod +x {script}.")


def of_script(script: str) -> dict[str, str]:
    """Return {path from the project's root: digest} of a script's files; comments of Python do not count.

    They are the script, the modules next to it that it imports anywhere, and the files that it names in a string (if it
    is not Python: as a word), from its folder or from the project's root; and so on for each of these.

    Raises:
        UserError: one that ends in .py is not Python.
    """
    top = (ROOT / script).resolve().parent
    waiting, found = [ROOT / script], {}
    while waiting:
        path = waiting.pop().resolve()
        if not path.is_file() or not path.is_relative_to(ROOT):
            continue
        name = str(path.relative_to(ROOT))
        if name in found or path.relative_to(ROOT).parts[0] in GENERATED:
            continue
        content = path.read_bytes()
        if path.suffix == ".py":
            tree = _tree(path)
            content = ast.dump(tree).encode()
            waiting += _imports(tree, path.parent, top)
            named = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        else:
            named = re.findall(r"[\w./-]+", content.decode(errors="replace"))
        found[name] = hashlib.sha256(content).hexdigest()[:16]
        for text in named:
            if isinstance(text, str) and 0 < len(text) < LONGEST and "\0" not in text:
                waiting += [path.parent / text, ROOT / text]
    return dict(sorted(found.items()))


def check_script_unchanged(script: str, sources: dict[str, str]) -> None:
    """Check that a script's files are those whose digests a run.json has.

    Raises:
        UserError: one was edited since.
    """
    now = of_script(script)
    if odd := sorted(path for path in {*now, *sources} if now.get(path) != sources.get(path)):
        raise UserError(
            f"{odd[0]} was edited since this run's settings were resolved; run the same command again, which trains "
            "with the edited script."
        )


def _imports(tree: ast.Module, folder: Path, top: Path) -> Iterator[Path]:
    """Yield where modules may be that a file in ``folder`` imports; ``top`` is the script's folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _places(top, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = top if node.level == 0 else [folder, *folder.parents][node.level - 1]
            module = node.module or ""
            for name in ("", *(alias.name for alias in node.names)):
                yield from _places(base, ".".join(filter(None, (module, name))))


def _places(base: Path, module: str) -> Iterator[Path]:
    """Yield the files of a dotted module, and of the packages that it is in."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:end])
        yield from (place.with_suffix(".py"), place / "__init__.py")
