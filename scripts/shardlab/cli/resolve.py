"""Resolve one run: check the configuration, and print or write its complete settings, as the workflow does.

A plan.json next to the output decides how much a run with activation_checkpointing: auto recomputes, and whether a run
fits.
"""

import argparse
import json
import sys
from pathlib import Path

from shardlab.files import write_json
from shardlab.records import plan
from shardlab.settings import load, resolve
from shardlab.settings.types import sealed


def main() -> None:
    """Resolve and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    load.add_config_argument(parser)
    parser.add_argument("--strategy", required=True, help="an entry of config/strategies.yaml")
    parser.add_argument("--workload", required=True, help="a file in config/workloads")
    parser.add_argument("--output", type=Path, help="run.json to write; without it, print it")
    args = parser.parse_args()
    run, made = resolve.run(args.config, args.strategy, args.workload), None
    if args.output:
        path = args.output.with_name(plan.FILE)
        auto = run.recipe.activation_checkpointing == "auto"
        made = plan.read(path, run) if auto else plan.find(run, path)
    hardware, refuse = load.site(args.config).hardware, args.config.on_memory_overflow == "refuse"
    frozen, note = plan.freeze(run, made, hardware, refuse=refuse)
    if note:
        print(note, file=sys.stderr)
    if args.output:
        write_json(args.output, sealed(frozen))
    else:
        print(json.dumps(sealed(frozen), indent=2))
