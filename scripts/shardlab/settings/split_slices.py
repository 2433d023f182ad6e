"""Rows of a repository's split, written as ``datasets`` does: train, train[:80%], train[1000:2000]."""

import re
from typing import NamedTuple

_SYNTAX = re.compile(r"(?P<split>\w+(?:\.\w+)*)(?:\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")
_ANY = 10**15
"""A number of rows that no split has."""


class SplitSlice(NamedTuple):
    """A split of the repository, and which of its rows: the bounds of a Python slice, or percents of the rows."""

    split: str
    start: int | None
    stop: int | None
    percent: bool
    text: str
    """As it is written."""

    def __str__(self) -> str:
        """Return it as it is written."""
        return self.text

    @property
    def whole(self) -> bool:
        """True if it is all rows, however many there are."""
        return self.start is None and self.stop is None

    def rows(self, count: int) -> range:
        """Return the rows of it in a split of ``count`` rows; percents are rounded to the closest row.

        Raises:
            ValueError: the split has fewer rows than a bound.
        """
        start, stop = (
            round(bound * count / 100) if bound is not None and self.percent else bound
            for bound in (self.start, self.stop)
        )
        if max(abs(start or 0), abs(stop or 0)) > count:
            raise ValueError(f"the split {self.split} has only {count} rows")
        return range(count)[start:stop]


def parse(text: str) -> SplitSlice:
    """Return the slice that a text means.

    Raises:
        ValueError: it means none.
    """
    match = _SYNTAX.fullmatch(text)
    bounds = [match["start"], match["stop"]] if match else []
    numbers = [int(bound.removesuffix("%")) for bound in bounds if bound]
    percents = {bound.endswith("%") for bound in bounds if bound}
    if not match or len(percents) > 1 or (percents == {True} and max(map(abs, numbers)) > 100):
        raise ValueError(
            f"{text!r} is no split; write its name, and rows of it in brackets if you want only those, in numbers or "
            "in percent: train[:80%], train[1000:2000]"
        )
    start, stop = (int(bound.removesuffix("%")) if bound else None for bound in bounds)
    return SplitSlice(match["split"], start, stop, percents == {True}, text)


def share_rows(first: SplitSlice, second: SplitSlice) -> bool:
    """Return whether two slices have rows in common in a split of any size; False if that depends on the size."""
    if first.split != second.split:
        return False
    if first.whole or second.whole:
        return True
    bounds = (first.start, first.stop, second.start, second.stop)
    if first.percent != second.percent or (not first.percent and any(bound and bound < 0 for bound in bounds)):
        return False
    count = 100 if first.percent else _ANY
    return common(first.rows(count), second.rows(count))


def common(first: range, second: range) -> bool:
    """Return whether two ranges of rows have rows in common."""
    return max(first.start, second.start) < min(first.stop, second.stop)
