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
from shardlab.schema import check, parse_yaml
from shardlab.settings import variants
from shardlab.settings.config import Config
from shardlab.settings.recipe import Recipe
from shardlab.settings.sites import Site
from shardlab.settings.types import RESERVED, Strategy, Workload

CONFIG = ROOT / "config"


@cache
def read_yaml(path: Path) -> Any:
    """Return the keys and values of one of the project's YAML files.

    Raises:
        UserError: it is missing, is not YAML, is too large, or has a duplicate key.
    """
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"{name} is not UTF-8 text; save it as UTF-8.") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}); name a file that can be.") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{name} is not YAML: {' '.join(str(error).split())}; fix it there.") from None
    if not isinstance(content, dict):
        raise UserError(f"{name} is {type(content).__name__}, not keys and values; write key: value.")
    return content


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``, parsed to a Config: what a call of Snakemake changes, or all of it as JSON or a YAML file."""
    parser.add_argument(
        "--config",
        nargs="+",
        type=_word,
        action=_Given,
        metavar="KEY=VALUE",
        default=str(CONFIG / "config.yaml"),
        help="what the call of Snakemake changed in config/config.yaml (or all of it: a YAML file, or JSON)",
    )


def add_results_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--results``, the folder that a call of Snakemake writes to."""
    parser.add_argument("--results", type=_results, default="results", help="folder of the results (results)")


def _results(text: str) -> Path:
    if not Path(text).is_dir() and (text != "results" or not ROOT.samefile(Path.cwd())):
        raise UserError(f"there is no folder {Path(text).absolute()}; name that of the results (--results).")
    return Path(text)


def _word(text: str) -> str | Config:
    if re.match(r"\w+=", text):
        return text
    if text.startswith("{"):
        try:
            return config(json.loads(text))
        except ValueError as error:
            raise UserError(f"--config is not JSON ({error}); quote it for the shell, or name a YAML file.") from None
    if not Path(text).exists():
        raise UserError(f"--config: there is no file {text}; write KEY=VALUE, or name an existing YAML file.")
    return config(read_yaml(Path(text)))


class _Given(argparse.Action):
    """Keep the Config that the words of ``--config`` describe."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, _: str | None = None) -> None:
        changes = [word for word in values if isinstance(word, str)]
        if len(values) > 1 and len(changes) < len(values):
            parser.error("--config takes words KEY=VALUE, or one file or JSON; give --config once")
        setattr(namespace, self.dest, config(called_with(changes)) if changes else values[0])


def called_with(changes: list[str]) -> dict[str, Any]:
    """Return the configuration's values after the words KEY=VALUE of a call of Snakemake.

    Raises:
        UserError: a word is something else.
    """
    from snakemake.cli import parse_config  # takes half a second, which most calls need not wait

    for word in changes:
        if not re.match(r"[a-zA-Z_]\w*=", word):
            raise UserError(f"--config takes words KEY=VALUE, and {word} is none; write -- before what follows them.")
    return merged(read_yaml(CONFIG / "config.yaml"), parse_config(changes))


@cache
def names(folder: str) -> tuple[str, ...]:
    """Return the names of the workloads or sites: the files of ``config/<folder>``."""
    return tuple(sorted(path.stem for path in (CONFIG / folder).glob("*.yaml")))


def _check_name(kind: str, name: str, where: str) -> None:
    """Raise a UserError for a name that does not fit the rules' patterns: names are part of file names."""
    if not re.fullmatch(r"\w+", name, re.ASCII):
        fitting = re.sub(r"\W+", "_", name, flags=re.ASCII)
        raise UserError(f"{where}: the name '{name}' of a {kind} may only have letters, digits, _; call it {fitting}.")


def config(values: dict[str, Any]) -> Config:
    """Validate the merged configuration, and check that every name in it exists."""
    config = check(Config, _with_nulls(values), "config")
    check(Recipe, config.recipe, "config: recipe")
    if config.strategies == ["all"]:
        config = config.model_copy(update={"strategies": own_strategies()})
    for name in config.workloads:
        workload(variants.parse_side(name, "workload")[0])
    for name in config.strategies:
        strategy(variants.parse_side(name, "strategy")[0])
    site(config)
    for key in dict.fromkeys(key for table in variants.swept(config) for key in table):
        if variants.keys()[key].varies_strategy and not any(
            variants.takes(strategy(variants.base(n)), key) for n in config.strategies
        ):
            raise UserError(
                f"{variants.SWEEP}: {key} has no effect on {', '.join(config.strategies)}; add a strategy it changes, "
                "or remove the key."
            )
    return config


@cache
def workload(name: str) -> Workload:
    if name not in names("workloads"):
        raise unknown("workload", name, names("workloads"), "config/workloads")
    _check_name("workload", name, f"config/workloads/{name}.yaml")
    return check(Workload, read_yaml(CONFIG / "workloads" / f"{name}.yaml"), f"config/workloads/{name}.yaml")


def own_strategies() -> list[str]:
    """Return the strategies that this project's own training runs: all but the scripts."""
    return [name for name in read_yaml(CONFIG / "strategies.yaml") if strategy(name).script is None]


@cache
def strategy(name: str) -> Strategy:
    strategies = read_yaml(CONFIG / "strategies.yaml")
    if name not in strategies:
        raise unknown("strategy", name, strategies, "config/strategies.yaml")
    _check_name("strategy", name, "config/strategies.yaml")
    if name in RESERVED:
        raise UserError(f"config/strategies.yaml: results/{name} is a folder of the workflow; rename the strategy.")
    return check(Strategy, strategies[name] or {}, f"config/strategies.yaml: {name}")


def variant_of_strategy(name: str) -> Strategy:
    """Return the named strategy, which may be a variant, validated.

    Raises:
        UserError: it does not exist, or does not accept the value.
    """
    base, values = variants.parse_side(name, "strategy")
    found = strategy(base)
    for key in values:
        if not variants.takes(found, key):
            raise UserError(f"the name {name}: {key} has no effect on {base}; request {base}.")
    over = variants.over(values, "strategy")
    return check(Strategy, merged(found.model_dump(exclude_unset=True), over), f"the name {name}") if over else found


def site(config: Config) -> Site:
    """Return the configuration's site, with the configuration's overrides over the file's keys, validated."""
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
    """Replace the text "null" by None: Snakemake passes ``--config 'key={inner: null}'`` with the text inside."""
    if isinstance(value, dict):
        return {key: _with_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) for inner in value]
    return None if value == "null" else value


def merged(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` updated by ``over``, key by key also inside nested groups."""
    both = {
        key: merged(values[key], value) if isinstance(value, dict) and isinstance(values.get(key), dict) else value
        for key, value in over.items()
    }
    return values | both
