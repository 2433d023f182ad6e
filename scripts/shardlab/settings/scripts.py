"""Scripts as strategies: where a script may be, and the files that its training depends on."""

import ast
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import ROOT

GENERATED = ("data", "results", ".snakemake")
"""Folders with files that a script may name, and that are no part of it."""
LONGEST = 200
"""Characters of a text that may be the name of a file."""


def check(script: str, where: str) -> None:
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


def digests(script: str) -> dict[str, str]:
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
            tree = syntax_tree(path)
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


def check_unchanged(script: str, sources: dict[str, str]) -> None:
    """Check that a script's files are those whose digests a run.json has.

    Raises:
        UserError: one was edited since.
    """
    now = digests(script)
    if odd := sorted(path for path in {*now, *sources} if now.get(path) != sources.get(path)):
        raise UserError(
            f"{odd[0]} was edited since this run's settings were resolved; run the same command again, which trains "
            "with the edited script."
        )


def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file of Python.

    Raises:
        UserError: it is none.
    """
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path.relative_to(ROOT)} is not Python: {error}; fix it there.") from None


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
