"""Digests of the source files that determine a run's numbers, which Snakemake cannot see behind ``shell:``.

The digests are part of run.json, so changed code is changed settings: it prepares, draws and trains again what it
touches and nothing else. Comments, docstrings and layout do not count.

Files can be edited after that: the processes that compute compare the code that they imported with these digests.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path

import shardlab
from shardlab.errors import UserError
from shardlab.files import ROOT
from shardlab.settings import scripts
from shardlab.settings.recipe import OPTIMIZERS
from shardlab.settings.types import Run

PACKAGE = ROOT / "scripts/shardlab"
COMPUTES = tuple(
    f"settings/{name}.py" for name in ("learning_rate", "mesh", "pipeline_schedules", "precisions", "recipe")
)
READS = ("data/order.py", "data/split_file.py", "data/store.py")
TRAINING = ("models/", "patches/", "train/", "runtime/", "parallel/", *READS, *COMPUTES)
"""Where code decides what a training computes; the rest checks, starts, measures and reports."""
DATA = ("data/",)
"""Code that determines the content of a prepared data set."""


def model_sources(name: str, *, transformers: bool) -> dict[str, str]:
    """Return the digests of the files that initialize a model's weights and compute its outputs."""
    own = ("models/_transformers.py", "models/_float64.py") if transformers else (f"models/{name}.py",)
    return _digests((*own, "models/__init__.py"), TRAINING)


def proof_sources() -> dict[str, str]:
    """Return the digests of the files that prove a strategy, besides the strategy's."""
    return _digests(("proof/step_on_ranks.py",), ("proof/", *TRAINING))


def data_sources(reader: str, task: str) -> dict[str, str]:
    """Return the digests of the files that read, encode and write a data set."""
    names = (reader, f"encoders/{task}", "encoders/__init__", "store")
    return _digests(tuple(f"data/{name}.py" for name in names), DATA)


def training_sources(run: Run) -> dict[str, str]:
    """Return the digests of the files that train a run: the loop, its task and strategy, without its model; or those of
    its script.
    """
    if run.script:
        return scripts.digests(run.script)
    uses = [run.engine_file]
    if run.engine == "torch":
        uses += run.mesh.techniques
    if run.model.folder:
        uses += [f"library_{name}" for name in ("context", "tensor", "experts") if name in uses]
    if run.options.single_process == "dp":
        uses.append("data_parallel")
    files = [f"parallel/{name}.py" for name in uses]
    module = OPTIMIZERS[run.recipe.optimizer.name].path.rpartition(".")[0]
    if module.startswith("shardlab."):
        files.append(f"{module.removeprefix('shardlab.').replace('.', '/')}.py")
    return _digests(("train/loop.py", f"runtime/tasks/{run.task}.py", *files), TRAINING)


def check_imported(*sources: Mapping[str, str]) -> None:
    """Check that this process imported the code that a run.json names, as far as it imported it.

    Raises:
        UserError: a file was edited in between.
    """
    for path, digest in chain.from_iterable(each.items() for each in sources):
        module = path.removeprefix("scripts/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        source = shardlab.IMPORTED.get(module)
        if source is not None and _digest_of(source) != digest:
            raise UserError(
                f"{path} was edited since this run's settings were resolved, so its results would be those of other "
                "code; run the same command again, which trains what the edit changes."
            )


def digest_imports() -> None:
    """Compute the digests of all that was imported so far, so that forks of this process need not."""
    for source in [*shardlab.IMPORTED.values()]:
        _digest_of(source)


@cache
def _digests(roots: tuple[str, ...], rooms: tuple[str, ...]) -> dict[str, str]:
    """Return {path from the project's folder: digest} of the roots and everything that they import from these rooms."""
    found: dict[Path, str] = {}
    waiting = [path for root in roots if (path := (PACKAGE / root).resolve()).is_file()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = _digest(path)
            waiting += [other for other in _imports(path) if str(other.relative_to(PACKAGE)).startswith(rooms)]
    return {str(path.relative_to(ROOT)): digest for path, digest in sorted(found.items())}


@cache
def _tree(path: Path) -> ast.Module:
    """Parse a file and remove its docstrings.

    Raises:
        UserError: it is not Python.
    """
    try:
        return _parsed(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path.relative_to(ROOT)} is not Python: {error}; fix it there.") from None


def _parsed(source: bytes) -> ast.Module:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree


@cache
def _digest(path: Path) -> str:
    return _digest_of_tree(_tree(path))


@cache
def _digest_of(source: bytes) -> str:
    return _digest_of_tree(_parsed(source))


def _digest_of_tree(tree: ast.Module) -> str:
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


@cache
def _imports(path: Path) -> tuple[Path, ...]:
    """Return the package's files that a file imports at its top; imports inside functions are for some runs only."""
    return tuple(file for node in _tree(path).body for file in _imported(node) if file.is_file())


def _imported(node: ast.stmt) -> Iterator[Path]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shardlab":
        module = PACKAGE.joinpath(*str(node.module).split(".")[1:])
        yield from (module.with_suffix(".py"), module / "__init__.py")
        for alias in node.names:
            yield from (module / f"{alias.name}.py", module / alias.name / "__init__.py")
