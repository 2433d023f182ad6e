"""Samples of a split, as a reader returns them: any collection of tuples that can be read more than once."""

from collections.abc import Iterable, Iterator
from typing import Any

from shardlab.errors import UserError
from shardlab.settings.types import DataSet

Samples = Iterable[tuple[Any, ...]]


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
