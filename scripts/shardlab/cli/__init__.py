"""The command ``shardlab``: a module per verb, whose ``main`` reads its arguments from ``sys.argv``."""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

from shardlab.errors import run_program, run_verb, unknown
from shardlab.files import COMMAND, ROOT

VERBS = {
    "Before a call of snakemake": {
        "preflight": "check a site: the login node, each node, all ranks",
        "resolve": "print or write the settings of one run",
        "pack": "run a call of snakemake inside one allocation of whole nodes",
        "check-model": "prove strategies on a transformers model, tiny",
        "check-script": "run a script for a few steps: what it keeps of its contract",
        "plan": "predict memory, traffic and time of runs, without training",
    },
    "During and after it": {
        "status": "print the state of each run, and what happens next",
        "watch": "watch all runs until q",
        "summarize": "compare all runs: the table and the verdict",
        "report": "draw the report of all runs",
        "bill": "sum up what jobs requested and used",
        "diagnose": "find where two trainings first differ, and why",
    },
    "Stages, which the rules call": {
        "launch": "start a stage as the site requires: job, image, ranks",
        "download": "download a data set or model from the hub",
        "prepare": "encode a data set as arrays",
        "prove": "prove which strategies may train a workload, tiny",
        "init": "draw a workload's initial weights",
        "train": "train one run (one rank)",
        "train_script": "train one run with a script (one rank)",
        "accept_script": "check what a script left, and report it",
        "evaluate": "compute the test loss of weights",
        "noise_floor": "train twins of single: the noise of rounding",
        "compare": "compare a run's final weights with those of single",
        "capture": "write what the first steps of a run read and computed",
        "export": "export weights as a transformers model",
        "collectives": "measure the collectives over all ranks",
        "wheelhouse": "collect the wheels of the image",
        "image": "build or inspect the image",
        "forkserver": "fork jobs from a process that has imported PyTorch",
        "fork_torchrun": "torchrun, with ranks forked from this process",
    },
}
"""Groups of verbs, in the order in which people meet them: what each does."""


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


def at_least(least: float) -> Callable[[str], float]:
    """Return the type of an option that is a finite number, a whole one if ``least`` is."""

    def number(text: str) -> float:
        value = type(least)(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is too small or no number; write {least} or more")
        return value

    return number


def _help() -> str:
    lines = ["usage: shardlab VERB [options]; shardlab VERB --help explains one."]
    for group, verbs in VERBS.items():
        lines += ["", f"{group}:", *(f"  {verb:<18}{text}" for verb, text in verbs.items())]
    return "\n".join(lines)
