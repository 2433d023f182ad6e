"""The command ``shardlab``: verbs, whose functions have their options as parameters (see ``program``)."""

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

from shardlab.errors import run_program, unknown
from shardlab.files import COMMAND, ROOT

VERBS = {
    "Before a call of snakemake": {
        "preflight": "check a site: the login node, each node, all ranks",
        "resolve": "print or write the settings of one run",
        "pack": "run a call of snakemake inside one job that has a whole node",
        "check-model": "prove strategies on a transformers model, tiny",
        "plan": "predict memory and traffic of runs, without training",
    },
    "During and after it": {
        "status": "print the state of each run, and what happens next",
        "summarize": "compare all runs: the table and the verdict",
        "report": "draw the report of all runs",
    },
}
"""Groups of verbs, in the order in which people meet them: what each does."""
STAGES = (
    *("preflight_login", "preflight_nodes", "preflight_ranks", "wheelhouse", "image"),
    *("download", "prepare", "prove", "init", "train", "train_script", "noise_floor"),
    *("evaluate", "compare", "export", "capture", "diagnose", "launch", "forkserver", "fork_torchrun"),
)
"""Verbs of the rules."""
MODULES = {
    "capture": "diagnose",
    "compare": "evaluate",
    "noise_floor": "evaluate",
    "download": "prepare",
    "fork_torchrun": "launch",
    "forkserver": "launch",
    "prove": "check_model",
    "resolve": "status",
    "summarize": "report",
    "train_script": "train",
    "wheelhouse": "image",
    **dict.fromkeys(("preflight_login", "preflight_nodes", "preflight_ranks"), "preflight"),
}
"""Verb: the module with the function of its name. Others are the ``main`` of a module of their name."""
WIDTH = 78
"""Of the text of a verb's help, in characters."""


def program(main: Callable[..., int | None]) -> Callable[[], int | None]:
    """Return a program that calls ``main`` with what ``sys.argv`` has for its parameters.

    Each is an option, required without a default; a positional one is an argument. A string in its ``Annotated`` type
    is its help, a function what parses it. ``config`` and ``results`` are those of `settings/load.py`. The help of a
    verb is its docstring; of a ``main``, that of its module.
    """

    def start() -> int | None:
        import inspect  # not before: `shardlab launch` has to start at once

        described = sys.modules[main.__module__] if main.__name__ == "main" else main
        about = [textwrap.fill(text, WIDTH) for text in inspect.getdoc(described).split("\n\n")]  # type: ignore[union-attr]
        parser = argparse.ArgumentParser(
            description="\n\n".join(about), formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parameters = inspect.signature(main).parameters.values()
        for parameter in parameters:
            _add(parser, parameter)
        given = vars(parser.parse_args())
        words: list[Any] = []
        for each in parameters:
            if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL):
                value = given.pop(each.name)
                words += value if each.kind == each.VAR_POSITIONAL else [value]
        return main(*words, **given)

    return start


def _add(parser: argparse.ArgumentParser, parameter: Any) -> None:
    """Add what a parameter of ``main`` is."""
    name, required = parameter.name, parameter.default is parameter.empty
    if name == "config" or (name == "results" and required):
        from shardlab.settings import load

        (load.add_config_argument if name == "config" else load.add_results_argument)(parser)
        return
    metadata = getattr(parameter.annotation, "__metadata__", ())
    kind = parameter.annotation.__origin__ if metadata else parameter.annotation
    several = get_origin(kind) is Sequence
    kind = next(iter(get_args(kind)), kind)  # of an optional, or of the items of a list
    options: dict[str, Any] = {"type": getattr(kind, "model_validate_json", kind)}
    for each in metadata:
        options["help" if isinstance(each, str) else "type"] = each
    if kind is bool:
        options = {"action": "store_true", "help": options.get("help")}
    if several or parameter.kind == parameter.VAR_POSITIONAL:
        options["nargs"] = "*"
    if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
        parser.add_argument(name, **options)
    else:
        default = None if required else parameter.default
        short = ["-n"] if name == "dry_run" else []
        parser.add_argument(*short, f"--{name.replace('_', '-')}", required=required, default=default, **options)


def main() -> None:
    """Run the verb that the command line names; without one, list them."""
    names = [*(verb for group in VERBS.values() for verb in group), *STAGES]
    verb = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if verb in ("-h", "--help"):
        run_program(lambda: print(_help()))
        return
    if verb not in names:
        sys.exit(f"error: {unknown('verb', verb, names, 'shardlab')}")
    if (here := Path("scripts/shardlab")).is_dir() and not here.samefile(COMMAND):
        sys.exit(f"error: this command is that of {ROOT}, not of this folder; call python scripts/shardlab {verb}")
    run_verb(sys.argv[1:])


def run_verb(words: list[str]) -> None:
    """Run a verb with its arguments, like ``run_program``."""
    verb = words[0].replace("-", "_")
    module = import_module(f"shardlab.cli.{MODULES.get(verb, verb)}")
    sys.argv = [f"shardlab {words[0]}", *words[1:]]
    run_program(getattr(module, verb if verb in MODULES else "main"))


def positive(text: str) -> int:
    """Parse an option that is a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return int(text)


def _help() -> str:
    lines = ["usage: shardlab VERB [options]; shardlab VERB --help explains one."]
    for group, verbs in VERBS.items():
        lines += ["", f"{group}:", *(f"  {verb:<18}{text}" for verb, text in verbs.items())]
    return "\n".join([*lines, "", textwrap.fill(f"The rules call: {', '.join(STAGES)}.", WIDTH)])
