#!/usr/bin/env python3
"""Resolve one run: check the configuration and write run.json, all that the run is."""

import argparse
from pathlib import Path

from shardlab.errors import UserError, run_program
from shardlab.files import write_json
from shardlab.report import plan
from shardlab.report.plan import Plan
from shardlab.settings import load, resolve
from shardlab.settings.sites import Figures
from shardlab.settings.types import Run


def main() -> None:
    """Resolve and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    load.add_config_argument(parser)
    parser.add_argument("--strategy", required=True, help="an entry of config/strategies.yaml")
    parser.add_argument("--workload", required=True, help="a file in config/workloads")
    parser.add_argument("--output", type=Path, required=True, help="run.json to write")
    args = parser.parse_args()
    run = resolve.run(args.config, args.strategy, args.workload)
    if sentence := unfit(run, load.site(args.config).figures, args.output.with_name(plan.FILE)):
        if args.config.unfit == "refuse":
            raise UserError(sentence)
        print(f"warning: {sentence}")
    write_json(args.output, run.model_dump())


def unfit(run: Run, figures: Figures, path: Path) -> str | None:
    """Why a run will not fit into the site's devices, if its plan, made before, says so."""
    if not path.exists():
        return None
    made = Plan.read(path, "plan again")
    if made.fits is None or not made.is_of(run):
        return None
    mode = run.recipe.activation_checkpointing
    if made.fits and mode in (made.activation_checkpointing, "auto"):
        return None
    size = made.predicted_memory_bytes / 2**30
    what = f"{run.strategy} x {run.workload} does not fit into a device's {figures.device_memory_gib:g} GiB"
    if made.fits:
        return (
            f"{what} as it is; set recipe.activation_checkpointing to {made.activation_checkpointing} ({size:.3g} GiB)."
        )
    return (
        f"{what}: its plan says {size:.3g} GiB a rank at best; take more ranks or another strategy (results/plan.md)."
    )


if __name__ == "__main__":
    run_program(main)
