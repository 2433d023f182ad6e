"""Source text of scikit-learn and SciPy, one sample per file."""

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np

from shardlab.data import split
from shardlab.settings.types import DataSet

PACKAGES = ("scikit-learn", "scipy")
"""Pinned in envs/workflow.txt; both BSD-3-Clause. NumPy is left out, because its wheels differ between Pythons."""
GENERATED = ("__config__.py", "version.py")
"""Written when a wheel is built: different for each Python."""


def read(data: DataSet, raw: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Samples (text,), about ``characters`` in total; each file is in only one split."""
    left, samples = data.options["characters"], []
    # Keep one very long module from being most of a split.
    longest = left // 40
    for text in sources(data.seed):
        if left <= 0:
            break
        samples.append((text[: min(left, longest)],))
        left -= len(samples[-1][0])
    return split(samples, data.seed)


def sources(seed: int) -> Iterator[str]:
    """Yield the text of the packages' Python files in a seeded order, without tests and generated files."""
    files = sorted(
        (str(path), path)
        for name in PACKAGES
        for path in distribution(name).files or ()
        if path.suffix == ".py" and "tests" not in path.parts and path.name not in GENERATED
    )
    for index in np.random.default_rng(seed).permutation(len(files)):
        yield files[index][1].read_text(encoding="utf-8")
