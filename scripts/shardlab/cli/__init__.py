"""The command ``shardlab``: verbs, whose functions have their options as parameters (see ``program``)."""

import argparse
import sys
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
    "Stages, which the rules call": {
        "preflight_login": "check the login node",
        "preflight_nodes": "check each node of a job",
        "preflight_ranks": "check all ranks of a job",
        "launch": "start a stage as the site requires: job, image, ranks",
        "download": "download a data set or model from the hub",
        "prepare": "encode a data set as arrays",
        "prove": "prove which strategies may train a workload, tiny",
        "init": "draw a workload's initial weights",
        "train": "train one run (one rank)",
        "train_script": "train one run with a script (one rank); check what it left",
        "evaluate": "compute the test loss of weights",
        "noise_floor": "train twins of single: the noise of rounding",
        "compare": "compare a run's final weights with those of single",
        "capture": "write what the first steps of a run read and computed",
        "diagnose": "find where a capture first differs from single, and why",
        "export": "export weights as a transformers model",
        "wheelhouse": "collect the wheels of the image",
        "image": "build or inspect the image",
        "forkserver": "fork jobs from a process that has imported PyTorch",
        "fork_torchrun": "torchrun, with ranks forked from this process",
    },
}
"""Groups of verbs, in the order in which people meet them: what each does."""
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


OPTIONS = {
    "attempt": "number of this attempt at the run",
    "commit": "commit of the working tree, for train.json",
    "data": "folder of the prepared data set",
    "image": "report of the image that this runs in, for train.json",
    "initial": "the weights that the training started from, or their report",
    "lock": "pinned requirements",
    "output": "file or folder to write",
    "settings": "run.json of the run, or site.json",
    "single": "final weights of `single`",
    "strategy": "an entry of config/strategies.yaml",
    "weights": "safetensors file: initial weights, or those to look at",
    "workload": "a file in config/workloads",
}
"""What is said of options of this name, unless a verb says something else."""


def program(main: Callable[..., int | None]) -> Callable[[], int | None]:
    """Return a program that calls ``main`` with what ``sys.argv`` has for its parameters.

    Each is an option, required without a default; a positional one is an argument. A string in its ``Annotated`` type
    is its help, a function what parses it. ``config`` and ``results`` are those of `settings/load.py`. The help of a
    verb is its docstring; of a ``main``, that of its module.
    """

    def start() -> int | None:
        import inspect  # not before: `shardlab launch` has to start at once
        import textwrap

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
    options: dict[str, Any] = {"type": getattr(kind, "model_validate_json", kind), "help": OPTIONS.get(name)}
    for each in metadata:
        options["help" if isinstance(each, str) else "type"] = each
    if kind is bool:
        options = {"action": "store_true", "help": options["help"]}
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
    names = [verb for group in VERBS.values() for verb in group]
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
    return "\n".join(lines)
