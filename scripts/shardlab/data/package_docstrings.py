"""Docstrings of scikit-learn and SciPy: the body is the document, the first line its summary."""

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardlab.data import split
from shardlab.data.package_source import sources
from shardlab.settings.types import DataSet


def read(data: DataSet, raw: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Samples (document, summary), ``rows`` of them, with unique summaries."""
    samples: dict[str, tuple[str, str]] = {}
    for text in sources(data.seed):
        for document, summary in _docstrings(text):
            samples.setdefault(summary, (document, summary))
        if len(samples) >= data.options["rows"]:
            break
    return split(list(samples.values())[: data.options["rows"]], data.seed)


def _docstrings(source: str) -> Iterator[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            summary, _, body = (ast.get_docstring(node) or "").partition("\n")
            if len(summary) >= 15 and len(body.split()) >= 8:
                yield " ".join(body.split()), summary.strip()
