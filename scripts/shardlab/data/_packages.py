"""Python files of two packages that the lock file pins: text available offline, the same everywhere."""

from collections.abc import Iterator
from importlib.metadata import distribution

import numpy as np

PACKAGES = ("scikit-learn", "scipy")
"""Pinned in envs/workflow.txt; both BSD-3-Clause. NumPy is left out, because its wheels differ between Pythons."""
GENERATED = ("__config__.py", "version.py")
"""Written when a wheel is built: different for each Python."""


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
