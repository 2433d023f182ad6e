"""The Python files of the standard library that runs this: text that is there without a network."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "__pycache__"}


def sources(seed: int) -> Iterator[str]:
    """Text of the standard library's Python files, in a seeded order; tests and the like are left out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path
        for path in root.rglob("*.py")
        if not SKIPPED & set(path.relative_to(root).parts) and not path.name.startswith("_sysconfigdata")
    )
    for index in np.random.default_rng(seed).permutation(len(files)):
        yield files[index].read_text(encoding="utf-8", errors="replace")
