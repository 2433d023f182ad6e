"""Resolve one run: check the configuration and write run.json, the run's complete settings.

A plan.json next to it decides how much a run with activation_checkpointing: auto recomputes, and whether a run fits.
"""

import argparse
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import write_json
from shardlab.records import plan
from shardlab.settings import load, resolve


def main() -> None:
    """Resolve and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    load.add_config_argument(parser)
    parser.add_argument("--strategy", required=True, help="an entry of config/strategies.yaml")
    parser.add_argument("--workload", required=True, help="a file in config/workloads")
    parser.add_argument("--output", type=Path, required=True, help="run.json to write")
    args = parser.parse_args()
    run = resolve.run(args.config, args.strategy, args.workload)
    path = args.output.with_name(plan.FILE)
    auto = run.recipe.activation_checkpointing == "auto"
    made = plan.read(path, run) if auto else plan.find(run, path)
    if sentence := plan.misfit(run, load.site(args.config).hardware, made):
        if args.config.on_memory_overflow == "refuse":
            raise UserError(sentence)
        print(f"warning: {sentence}")
    write_json(args.output, (run.planned(made.recomputation) if auto and made else run).model_dump())
