"""Sweeps: which variants the configuration's ``sweep:`` asks for.

A group of keys with lists or ranges is a product; a list of groups is their union: a table is a list of rows.
"""

from collections.abc import Iterator
from itertools import product
from math import log10, prod
from typing import Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from shardlab.errors import UserError
from shardlab.schema import Strict, check
from shardlab.settings import variants
from shardlab.settings.config import Config
from shardlab.settings.variants import Values

WHERE = "config: sweep"
MOST = 100_000
"""Maximum number of values in a range, so that a typo does not exhaust the memory."""


class Range(Strict):
    """Numbers from first to last: in steps of 1 or of ``step``, or ``count`` of them."""

    first: float = Field(description="First value.")
    last: float = Field(description="Last value.")
    step: PositiveFloat | None = Field(None, description="Distance between values.")
    count: int | None = Field(None, ge=2, description="Number of values; those in between are rounded to three digits.")
    scale: Literal["linear", "log"] = Field("linear", description="With count: equal distances or equal ratios.")

    @model_validator(mode="after")
    def _goes(self) -> "Range":
        if self.count and self.step:
            raise ValueError("it takes step or count; remove one of them")
        if self.last < self.first:
            raise ValueError("last is below first; swap them")
        if (self.count or (self.last - self.first) / (self.step or 1)) > MOST:
            raise ValueError(f"it has more than {MOST:,} values")
        if self.scale == "log" and (self.first <= 0 or not self.count):
            raise ValueError("scale log needs a first above 0 and a count")
        return self

    @property
    def values(self) -> list[float]:
        if not self.count:
            step = self.step or 1.0
            numbers = [self.first + step * i for i in range(int((self.last - self.first) / step + 1e-9) + 1)]
            return [_whole(float(f"{value:.12g}")) for value in numbers]
        parts = [i / (self.count - 1) for i in range(1, self.count - 1)]
        if self.scale == "log":
            between = [10 ** (log10(self.first) + part * (log10(self.last) - log10(self.first))) for part in parts]
        else:
            between = [self.first + part * (self.last - self.first) for part in parts]
        return [_whole(value) for value in (self.first, *(float(f"{value:.3g}") for value in between), self.last)]


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value


def checked(config: Config) -> list[dict[str, list[Any]]]:
    """Return the requested products, one after the other: {short name of a key: its values}.

    Raises:
        UserError: a key or value does not exist, a list is empty, or there are more runs than ``max_runs``.
    """
    tables = config.sweep if isinstance(config.sweep, list) else [config.sweep]
    if not tables:
        raise UserError(f"{WHERE}: the list is empty; add keys with lists, or remove it.")
    products = [_product(table) for table in tables]
    points = sum(prod(map(len, table.values())) for table in products)
    runs = points * len(config.strategies) * len(config.workloads)
    if config.sweep and runs > config.max_runs:
        raise UserError(
            f"{WHERE}: {points:,} variants of {len(config.strategies)} strategies and {len(config.workloads)} "
            f"workloads are {runs:,} runs, more than max_runs {config.max_runs:,}; use fewer, or raise max_runs."
        )
    return products


def _product(table: Any) -> dict[str, list[Any]]:
    if not isinstance(table, dict):
        raise UserError(f"{WHERE}: {table!r} is not keys with lists; write learning_rate: [0.001, 0.003].")
    product: dict[str, list[Any]] = {}
    for name, given in table.items():
        if dotted := _dotted(str(name), given):
            raise UserError(f"{WHERE}: {name} is a group of keys; write {dotted}: [...].")
        key = variants.short(str(name), WHERE)
        where = f"{WHERE}: {name}"
        values = check(Range, given, where).values if isinstance(given, dict) else given
        if not isinstance(values, list):
            values = [values]
        if not values:
            raise UserError(f"{where}: the list is empty; name at least one value, or remove the key.")
        taken = [variants.keys()[key].check(variants.read(value), where) for value in values]
        for value in taken:
            variants.named("", {key: value})
        if len(taken) != len({repr(value) for value in taken}):
            raise UserError(f"{where}: a value appears twice; name it once.")
        if key in product:
            raise UserError(f"{where}: {key} appears twice; name it once.")
        product[key] = taken
    return product


def _dotted(name: str, given: Any) -> str | None:
    """Return the intended key if ``name`` is a group of keys: the first one inside ``given``, or of the group."""
    if not (dotted := variants.in_group(name)):
        return None
    if not isinstance(given, dict) or not given:
        return dotted
    inner = f"{name}.{next(iter(given))}"
    return _dotted(inner, given[next(iter(given))]) or inner


def points(config: Config) -> Iterator[tuple[Values, Values]]:
    """Yield (strategy values, workload values) of each variant; without a sweep, one empty pair."""
    for table in checked(config):
        for values in product(*table.values()):
            point = dict(zip(table, values, strict=True))
            ours = {key: value for key, value in point.items() if variants.keys()[key].varies_strategy}
            yield ours, {key: value for key, value in point.items() if key not in ours}
