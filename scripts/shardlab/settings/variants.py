"""Variants: a strategy or a workload with overrides, which are part of its name.

``llama2@learning_rate=0.003@seed=2`` is the workload llama2 with two overrides of its recipe and the configuration,
``pp@n_microbatches=8`` the strategy pp with one. The name alone defines the variant: each run is resolved without any
other, and adding values to a sweep leaves the existing variants unchanged.

In ``sweep:`` of the configuration a group of keys with lists is a product; a list of groups is their union: a table is
a list of rows.
"""

import itertools
import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from shardlab.errors import UserError, unknown
from shardlab.schema import parse_yaml, words, yes_for_number
from shardlab.settings.config import Config
from shardlab.settings.mesh import AXES, Split
from shardlab.settings.recipe import Recipe
from shardlab.settings.types import Strategy

SWEEP = "config: sweep"
"""Where a sweep is asked for."""
SIGN = "@"
"""Precedes each value. Unlike a comma, it does not end a wildcard where Snakemake passes a job to Slurm; + is used in
numbers.
"""
PATTERN = rf"\w+(?:{SIGN}[\w.]+=[\w.:+-]+)*"
"""Pattern of the names of strategies and workloads."""
Values = dict[str, Any]
"""Short name of a key: value."""
WEIGHTS = ("seed", "size", "dtype", "freeze", "adapter")
"""Keys that initial weights, or their report, depend on; runs that share their values share the weights."""
NEEDS: dict[str, Split] = {
    "cpu_offload": "states",
    "reshard_after_forward": "states",
    "wrap_parameters": "states",
    "context": "sequence",
    "sequence_parallel": "tensors",
    "loss_parallel": "tensors",
    "pipeline_schedule": "layers",
    "n_microbatches": "layers",
    "find_unused_parameters": "samples",
}
"""Option of a strategy: what an axis has to split for the option to have an effect."""
ALONE: dict[str, set[Split]] = {"find_unused_parameters": {"samples"}}
"""Option of a strategy: what its axes may split if it is set."""
NAMED = ("engine", "config", "script", "workloads", "min_ranks", "single_process")
"""Keys that define a strategy; different values need separate entries in config/strategies.yaml."""


class Key(NamedTuple):
    """A key that variants may set."""

    path: tuple[str, ...]
    """recipe and its keys; strategy and one of its; or one of the configuration's."""
    kind: Any
    """Type of the key, including the constraints on its values."""

    @property
    def varies_strategy(self) -> bool:
        """True if it varies a strategy, not a workload: runs with any value of it are compared with the same
        ``single``.
        """
        return self.path[0] in ("strategy", "nodes", "ranks_per_node")

    def check(self, value: Any, where: str) -> Any:
        """Return the validated value.

        Raises:
            UserError: the key does not accept the value.
        """
        try:
            parsed = _adapter(self.path).validate_python(value)
        except ValidationError as error:
            raise UserError(f"{where} cannot be {value!r}: {words(error.errors()[0])}.") from None
        if yes_for_number(value, parsed):
            raise UserError(f"{where} cannot be {value!r}: write a number.")
        return parsed


@cache
def keys() -> dict[str, Key]:
    """Return {short name: key}. The short name is the shortest unique suffix of the path: learning_rate,
    optimizer.name.
    """
    leaves = [
        *_leaves(Config, ("seed", "size", "nodes", "ranks_per_node")),
        *_leaves(Recipe, tuple(Recipe.model_fields), ("recipe",)),
        *_leaves(Strategy, tuple(name for name in Strategy.model_fields if name not in NAMED), ("strategy",)),
    ]
    ends = [".".join(key.path[start:]) for key in leaves for start in range(len(key.path))]
    return {
        next(end for start in reversed(range(len(key.path))) if ends.count(end := ".".join(key.path[start:])) == 1): key
        for key in leaves
    }


def _leaves(kind: type[BaseModel], names: tuple[str, ...], above: tuple[str, ...] = ()) -> Iterator[Key]:
    for name in names:
        field = kind.model_fields[name]
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _leaves(inner, tuple(inner.model_fields), (*above, name))
        else:
            yield Key((*above, name), Annotated[inner, *field.metadata] if field.metadata else inner)


@cache
def _adapter(path: tuple[str, ...]) -> TypeAdapter[Any]:
    return TypeAdapter(next(key.kind for key in keys().values() if key.path == path))


def named(base: str, values: Values) -> str:
    """Return the variant's name. The keys are sorted, whatever order they were given in.

    Raises:
        UserError: a value cannot be part of a file name.
    """
    return base + "".join(f"{SIGN}{key}={text(key, values[key])}" for key in sorted(values))


def text(key: str, value: Any) -> str:
    """Format a value for names.

    Raises:
        UserError: it cannot be part of a file name.
    """
    if isinstance(value, list | tuple):
        return ":".join(text(key, each) for each in value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    written = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
    if not re.fullmatch(r"[\w.+-]+", written, re.ASCII):
        raise UserError(
            f"sweep: {key}: the value {written!r} becomes part of a file name; use only letters, digits, _ . + and -."
        )
    return written


def base(name: str) -> str:
    """Return the strategy or workload that a variant is based on."""
    return name.partition(SIGN)[0]


@cache
def parse(name: str) -> tuple[str, Values]:
    """Return the strategy or workload, and its overrides.

    Raises:
        UserError: a key or value does not exist, or is not written as `named` writes it.
    """
    what, *parts = name.split(SIGN)
    values: Values = {}
    for part in parts:
        key, _, text = part.partition("=")
        if key not in keys():
            raise unknown("key", key, keys(), f"the name {name}")
        given = [read(each) for each in text.split(":")] if ":" in text else read(text)
        values[key] = keys()[key].check(given, f"the name {name}: {key}")
    if (right := named(what, values)) != name:
        raise UserError(f"the name {name} must be written {right}; use that.")
    return what, values


def parse_side(name: str, side: Literal["strategy", "workload"]) -> tuple[str, Values]:
    """Parse the name of a strategy or of a workload, as ``side`` says.

    Raises:
        UserError: see `parse`; or a key belongs to the other side.
    """
    what, values = parse(name)
    for key in values:
        varied = "strategy" if keys()[key].varies_strategy else "workload"
        if varied != side:
            plural = {"strategy": "strategies", "workload": "workloads"}[varied]
            raise UserError(f"the name {name}: {key} varies {plural}; write it after the {varied}'s name.")
    return what, values


def read(given: Any) -> Any:
    """Parse a value that may be given as text: in a name, or in a --config option."""
    if isinstance(given, list):
        return [read(each) for each in given]
    if not isinstance(given, str):
        return given
    if given == "null":
        return None
    try:
        return parse_yaml(given)
    except yaml.YAMLError:
        return given


def takes(settings: Strategy, key: str) -> bool:
    """Return whether ``key`` affects a strategy; no key affects ``single``."""
    distributed = settings.engine == "deepspeed" or bool(settings.degrees)
    if key == "ranks_per_node":
        return distributed or settings.single_process is not None
    if settings.script:
        return distributed and key in ("nodes", *AXES)
    if key == "nodes" or settings.engine == "deepspeed":
        return distributed and key == "nodes"
    splits = settings.splits
    return distributed and (key not in NEEDS or NEEDS[key] in splits) and splits <= ALONE.get(key, splits)


def over(values: Values, kind: Literal["recipe", "strategy"]) -> dict[str, Any]:
    """Return the values of ``kind`` as nested settings."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        first, *path = keys()[name].path
        if first == kind:
            parent = nested
            for group in path[:-1]:
                parent = parent.setdefault(group, {})
            parent[path[-1]] = value
    return nested


def override_config(config: Config, values: Values) -> Config:
    """Return the configuration with the overrides of its keys and of the recipe."""
    plain = {name: value for name, value in values.items() if len(keys()[name].path) == 1}
    if "dtype" in values:
        plain["dtype"] = values["dtype"]
    return config.model_copy(update=plain)


def swept(config: Config) -> list[dict[str, list[Any]]]:
    """Return the requested products, one after the other: {short name of a key: its values}.

    Raises:
        UserError: a key or value does not exist, or a list is empty.
    """
    tables = config.sweep if isinstance(config.sweep, list) else [config.sweep]
    if not tables:
        raise UserError(f"{SWEEP}: the list is empty; add keys with lists, or remove it.")
    return [_product(table) for table in tables]


def _product(table: Any) -> dict[str, list[Any]]:
    if not isinstance(table, dict):
        raise UserError(f"{SWEEP}: {table!r} is not keys with lists; write learning_rate: [0.001, 0.003].")
    product: dict[str, list[Any]] = {}
    for name, given in table.items():
        where, key = f"{SWEEP}: {name}", str(name)
        if key not in keys():
            raise unknown("key", key, keys(), SWEEP)
        values = given if isinstance(given, list) else [given]
        if not values:
            raise UserError(f"{where}: the list is empty; name at least one value, or remove the key.")
        taken = [keys()[key].check(read(value), where) for value in values]
        for value in taken:
            named("", {key: value})
        if len(taken) != len({repr(value) for value in taken}):
            raise UserError(f"{where}: a value appears twice; name it once.")
        product[key] = taken
    return product


def points(config: Config) -> Iterator[tuple[Values, Values]]:
    """Yield (strategy values, workload values) of each variant; without a sweep, one empty pair."""
    for table in swept(config):
        for values in itertools.product(*table.values()):
            point = dict(zip(table, values, strict=True))
            ours = {key: value for key, value in point.items() if keys()[key].varies_strategy}
            yield ours, {key: value for key, value in point.items() if key not in ours}
