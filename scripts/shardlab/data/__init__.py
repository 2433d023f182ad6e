"""Data sets: one reader per file, the prepared format, and the batch order.

A reader is a module with ``read(data: DataSet, raw: Path) -> dict[str, Samples]``: the samples of the splits train,
validation and test, each a tuple in the task's order (see ``encoders``). Samples are a list, or any other object whose
``__iter__`` starts again from the first one: they are read several times, and need not all be in memory.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shardlab.errors import UserError
from shardlab.settings import registry
from shardlab.settings.types import DataSet

Samples = Iterable[tuple[Any, ...]]
SPLITS = ("train", "validation", "test")
T = TypeVar("T")


def read(data: DataSet, raw: Path) -> dict[str, Samples]:
    """Return the samples of every split, from the data set's reader.

    Raises:
        UserError: the reader does not exist or does not return samples, or a split is empty.
    """
    registry.require("reader", data.reader)
    splits: dict[str, Samples] = import_module(f"shardlab.data.{data.reader}").read(data, raw)
    for name in SPLITS:
        samples = splits.get(name, []) if isinstance(splits, dict) else None
        if not isinstance(samples, Iterable) or isinstance(samples, Iterator | str | bytes | dict):
            raise UserError(
                f"data set {data.name}: read(data, raw) in scripts/shardlab/data/{data.reader}.py must return "
                f"{{split: samples}} with the splits {', '.join(SPLITS)}, where samples are a list of tuples or can be "
                f"read again like one; it returns {'' if samples is None else f'{name}: '}"
                f"a {type(splits if samples is None else samples).__name__}."
            )
        if next(iter(Located(data, name, samples)), None) is None:
            raise UserError(
                f"data set {data.name}: the split {name} is empty; request more rows, or other ones (`hub.splits`, or "
                f"scripts/shardlab/data/{data.reader}.py)."
            )
    return splits


def split(samples: list[T], seed: int, test: float = 0.1) -> dict[str, list[T]]:
    """Shuffle (seeded) and split into train, validation and test; the last two get a fraction ``test`` each."""
    order = np.random.default_rng(seed).permutation(len(samples))
    held = max(1, round(len(samples) * test))
    cuts = {"test": order[:held], "validation": order[held : 2 * held], "train": order[2 * held :]}
    return {name: [samples[i] for i in cuts[name]] for name in SPLITS}


class Located:
    """Samples of a split, which know where they are read: errors can then name the row."""

    def __init__(self, data: DataSet, split: str, samples: Samples) -> None:
        self.data, self.split, self.samples = data, split, samples
        self._row: int | None = None
        self.failure: Exception | None = None
        """What the reader raised, in contrast to what those who take the samples raise."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Read from the first sample.

        Raises:
            UserError: a sample is no tuple, or a file could not be read.
        """
        self._row = 0
        samples = iter(self.samples)
        while True:
            try:
                sample = next(samples)
            except StopIteration:
                self._row = None
                return
            except OSError as error:  # of libraries for pictures, too
                self.failure = UserError(f"{self.place}: {error}.")
                raise self.failure from error
            except Exception as error:
                self.failure = error
                error.add_note(f"{self.place}, read by scripts/shardlab/data/{self.data.reader}.py")
                raise
            if not isinstance(sample, tuple | list):
                self.failure = UserError(
                    f"{self.place}: read(data, raw) in scripts/shardlab/data/{self.data.reader}.py must return tuples, "
                    f"but this is a {type(sample).__name__}."
                )
                raise self.failure
            yield tuple(sample)
            self._row += 1

    @property
    def place(self) -> str:
        """Data set, split, and the row (from 0) that was read last, until the end of the split."""
        split = f"data set {self.data.name}, split {self.split}"
        if self._row is None:
            return split
        columns = self.data.hub.columns if self.data.hub else []
        return f"{split}, row {self._row}" + (f" (columns {', '.join(columns)})" if columns else "")
