"""Sweeps: which variants the configuration's ``sweep:`` asks for.

A group of keys with lists is a product; a list of groups is their union: a table is a list of rows.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from shardlab.errors import UserError
from shardlab.settings import variants
from shardlab.settings.config import Config
from shardlab.settings.variants import Values

WHERE = "config: sweep"


def checked(config: Config) -> list[dict[str, list[Any]]]:
    """Return the requested products, one after the other: {short name of a key: its values}.

    Raises:
        UserError: a key or value does not exist, or a list is empty.
    """
    tables = config.sweep if isinstance(config.sweep, list) else [config.sweep]
    if not tables:
        raise UserError(f"{WHERE}: the list is empty; add keys with lists, or remove it.")
    return [_product(table) for table in tables]


def _product(table: Any) -> dict[str, list[Any]]:
    if not isinstance(table, dict):
        raise UserError(f"{WHERE}: {table!r} is not keys with lists; write learning_rate: [0.001, 0.003].")
    product: dict[str, list[Any]] = {}
    for name, given in table.items():
        key = variants.short(str(name), WHERE)
        where = f"{WHERE}: {name}"
        values = given if isinstance(given, list) else [given]
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


def points(config: Config) -> Iterator[tuple[Values, Values]]:
    """Yield (strategy values, workload values) of each variant; without a sweep, one empty pair."""
    for table in checked(config):
        for values in product(*table.values()):
            point = dict(zip(table, values, strict=True))
            ours = {key: value for key, value in point.items() if variants.keys()[key].varies_strategy}
            yield ours, {key: value for key, value in point.items() if key not in ours}
