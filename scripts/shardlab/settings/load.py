"""The configuration files, read and checked."""

import argparse
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from shardlab.errors import UserError, unknown
from shardlab.files import ROOT
from shardlab.schema import check
from shardlab.settings import sweep, variants
from shardlab.settings.config import Config
from shardlab.settings.recipe import Recipe
from shardlab.settings.sites import Site
from shardlab.settings.strict_yaml import parse_yaml
from shardlab.settings.types import RESERVED, Strategy, Workload

CONFIG = ROOT / "config"


@cache
def read_yaml(path: Path) -> Any:
    """Content of a YAML file of the project: keys and values.

    Raises:
        UserError: it is missing, no YAML, too large, or names a key twice.
    """
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{name} is missing; take it from a fresh clone, or name a file that is there.") from None
    except (IsADirectoryError, UnicodeDecodeError):
        raise UserError(f"{name} is no text in UTF-8; write it as one.") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{name} is not YAML: {' '.join(str(error).split())}; correct it there.") from None
    if not isinstance(content, dict):
        raise UserError(f"{name} is {type(content).__name__}, not keys and values; write key: value.")
    return content


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``: the configuration as JSON, or the path of a YAML file; parsed to a Config."""
    parser.add_argument(
        "--config",
        type=lambda text: config(_from_json(text) if text.startswith("{") else read_yaml(Path(text))),
        default=str(CONFIG / "config.yaml"),
        help="configuration: a YAML file, or JSON (default: config/config.yaml)",
    )


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"--config is no JSON ({error}); quote it for the shell, or name a YAML file.") from None


@cache
def names(folder: str) -> tuple[str, ...]:
    """Names of the workloads or sites: the files of ``config/<folder>``."""
    return tuple(sorted(path.stem for path in (CONFIG / folder).glob("*.yaml")))


def _check_name(kind: str, name: str, where: str) -> None:
    """Raise a UserError for a name that rules cannot take: it is part of file names and of their patterns."""
    if not re.fullmatch(r"\w+", name, re.ASCII):
        fitting = re.sub(r"\W+", "_", name, flags=re.ASCII)
        raise UserError(f"{where}: the name '{name}' of a {kind} is letters, digits and _; call it {fitting}.")


def config(values: dict[str, Any]) -> Config:
    """Check the merged configuration, and that every name in it exists."""
    if not isinstance(values, dict):
        raise UserError("config: it is not keys and values; write key: value.")
    config = check(Config, _with_nulls(values), "config")
    check(Recipe, config.recipe, "config: recipe")
    if config.strategies == ["all"]:
        config = config.model_copy(update={"strategies": list(read_yaml(CONFIG / "strategies.yaml"))})
    for name in config.workloads:
        workload(name)
    for name in config.strategies:
        strategy(name)
    site(config)
    for key in dict.fromkeys(key for table in sweep.checked(config) for key in table):
        if variants.keys()[key].of_strategy and not any(variants.takes(strategy(n), key) for n in config.strategies):
            raise UserError(
                f"{sweep.WHERE}: {key} varies none of {', '.join(config.strategies)}; add a strategy that it changes, "
                "or remove the key."
            )
    return config


@cache
def workload(name: str) -> Workload:
    """The workload of that name, checked."""
    if name not in names("workloads"):
        raise unknown("workload", name, names("workloads"), "config/workloads")
    _check_name("workload", name, f"config/workloads/{name}.yaml")
    return check(Workload, read_yaml(CONFIG / "workloads" / f"{name}.yaml"), f"config/workloads/{name}.yaml")


@cache
def strategy(name: str) -> Strategy:
    """The strategy of that name, checked."""
    strategies = read_yaml(CONFIG / "strategies.yaml")
    if name not in strategies:
        raise unknown("strategy", name, strategies, "config/strategies.yaml")
    _check_name("strategy", name, "config/strategies.yaml")
    if name in RESERVED:
        raise UserError(f"config/strategies.yaml: results/{name} is a folder of the workflow's; rename the strategy.")
    return check(Strategy, strategies[name] or {}, f"config/strategies.yaml: {name}")


def variant_of_strategy(name: str) -> Strategy:
    """The strategy of that name, which may be a variant's; checked.

    Raises:
        UserError: there is none, or it takes no such value.
    """
    base, values = variants.of_side(name, "strategy")
    found = strategy(base)
    for key in values:
        if not variants.takes(found, key):
            raise UserError(f"the name {name}: {base} is the same with any {key}; ask for {base}.")
    over = variants.over(values, "strategy")
    return check(Strategy, merged(found.model_dump(exclude_unset=True), over), f"the name {name}") if over else found


def site(config: Config) -> Site:
    """The site of a configuration, with the configuration's own settings put over the file's, checked."""
    over = config.site_settings
    if config.container is not None:
        over = merged(over, {"container": {"enabled": config.container}})
    return _site(config.site, json.dumps(over))


@cache
def _site(name: str, over: str) -> Site:
    if name not in names("sites"):
        raise unknown("site", name, names("sites"), "config/sites")
    values = read_yaml(CONFIG / "sites" / f"{name}.yaml")
    check(Site, values, f"config/sites/{name}.yaml")
    return check(Site, merged(values, json.loads(over)), "config: site_settings")


def _with_nulls(value: Any) -> Any:
    """Snakemake hands over ``--config 'key={inner: null}'`` with the text "null" inside; here it is None again."""
    if isinstance(value, dict):
        return {key: _with_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) for inner in value]
    return None if value == "null" else value


def merged(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` put over ``values``, key by key also inside groups of keys."""
    both = {
        key: merged(values[key], value) if isinstance(value, dict) and isinstance(values.get(key), dict) else value
        for key, value in over.items()
    }
    return values | both
