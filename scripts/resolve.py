#!/usr/bin/env python3
"""Resolve one run: check the configuration and write run.json, all that the run is."""

import argparse
import json
from pathlib import Path

from shardlab.errors import UserError, run_program
from shardlab.files import write_json
from shardlab.schema import check
from shardlab.settings import load, resolve
from shardlab.settings.types import Run


def main() -> None:
    """Resolve, or take the run that the workflow has resolved, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    load.add_config_argument(parser)
    parser.add_argument("--strategy", help="an entry of config/strategies.yaml")
    parser.add_argument("--workload", help="a file in config/workloads")
    parser.add_argument("--run", help="the run itself (JSON), in place of the three above")
    parser.add_argument("--output", type=Path, required=True, help="run.json to write")
    args = parser.parse_args()
    if args.run:
        run = check(Run, json.loads(args.run), "--run")
    elif args.strategy and args.workload:
        run = resolve.run(args.config, args.strategy, args.workload)
    else:
        raise UserError("name the run with --strategy and --workload.")
    write_json(args.output, run.model_dump())


if __name__ == "__main__":
    run_program(main)
