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
        UserError: the reader does not exist or does not return samples, or a split is empty.
    """
    registry.require("reader", data.reader)
    splits: dict[str, list[tuple[Any, ...]]] = import_module(f"shardlab.data.{data.reader}").read(data, raw)
    for name in SPLITS:
        if not _is_samples(samples := splits.get(name, []) if isinstance(splits, dict) else None):
            raise UserError(
                f"data set {data.name}: read(data, raw) in scripts/shardlab/data/{data.reader}.py must return "
                f"{{split: list of tuples}} with the splits {', '.join(SPLITS)}; it returns "
                f"{_described(splits) if samples is None else f'{name}: {_described(samples)}'}."
            )
        if not samples:
            raise UserError(f"data set {data.name}: the split {name} is empty; request more rows.")
    return splits


def _is_samples(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(sample, tuple | list) for sample in value)


def _described(value: object) -> str:
    """Describe a value by its type, and a list also by its first element that is no sample."""
    wrong = (
        next((each for each in value if not isinstance(each, tuple | list)), None) if isinstance(value, list) else None
    )
    return f"a {type(value).__name__}" + (f" with a {type(wrong).__name__}" if wrong is not None else "")


def split(samples: list[T], seed: int, test: float = 0.1) -> dict[str, list[T]]:
    """Shuffle (seeded) and split into train, validation and test; the last two get a fraction ``test`` each."""
    order = np.random.default_rng(seed).permutation(len(samples))
    held = max(1, round(len(samples) * test))
    cuts = {"test": order[:held], "validation": order[held : 2 * held], "train": order[2 * held :]}
    return {name: [samples[i] for i in cuts[name]] for name in SPLITS}
