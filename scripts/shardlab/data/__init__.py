"""Data sets: one reader per file, the prepared format, and the batch order.

A reader is a module with ``read(data: DataSet, raw: Path) -> dict[str, list[tuple]]``: the samples of the splits train,
validation and test, each a tuple in the task's order (see ``encode``).
"""

from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shardlab.errors import UserError
from shardlab.settings import registry
from shardlab.settings.types import DataSet

SPLITS = ("train", "validation", "test")
T = TypeVar("T")


def read(data: DataSet, raw: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the samples of every split, from the data set's reader.

    Raises:
        UserError: the reader does not exist, or a split is empty.
    """
    registry.require("reader", data.reader)
    splits: dict[str, list[tuple[Any, ...]]] = import_module(f"shardlab.data.{data.reader}").read(data, raw)
    for name in SPLITS:
        if not splits.get(name):
            raise UserError(f"data set {data.name}: the split {name} is empty; request more rows.")
    return splits


def split(samples: list[T], seed: int, test: float = 0.1) -> dict[str, list[T]]:
    """Shuffle (seeded) and split into train, validation and test; the last two get a fraction ``test`` each."""
    order = np.random.default_rng(seed).permutation(len(samples))
    held = max(1, round(len(samples) * test))
    cuts = {"test": order[:held], "validation": order[held : 2 * held], "train": order[2 * held :]}
    return {name: [samples[i] for i in cuts[name]] for name in SPLITS}
