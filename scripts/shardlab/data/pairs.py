"""Seeded pairs (x, y): y comes from a fixed random teacher plus noise, so there is something to learn."""

from pathlib import Path
from typing import Any

import numpy as np

from shardlab.data import split
from shardlab.settings.types import DataSet


def read(data: DataSet, raw: Path) -> dict[str, list[tuple[Any, ...]]]:
    """``rows`` pairs of float64 vectors: x (inputs,) from N(0, 1), y (outputs,) = teacher(x) + noise."""
    options = data.options
    rng = np.random.default_rng(data.seed)
    x = rng.standard_normal((options["rows"], options["inputs"]))
    teacher = rng.standard_normal((options["inputs"], options["outputs"]))
    # Not x @ teacher: BLAS kernels round differently, and the fingerprint must be the same everywhere.
    taught = sum(x[:, [column]] * row for column, row in enumerate(teacher))
    y = taught + options["noise"] * rng.standard_normal((options["rows"], options["outputs"]))
    return split(list(zip(x, y, strict=True)), data.seed)
