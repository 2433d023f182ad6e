"""Describe a call and its results as a Workflow Run RO-Crate: a folder for
archiving, sharing or publishing.

Example:

    shardlab export_rocrate --results results --output results/crate
"""

import argparse
from pathlib import Path

from shardlab.report import crate, run_data, summary
from shardlab.settings import load


def main() -> None:
    """Read the reports, write the crate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load.add_config_argument(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument("--output", type=Path, required=True, help="folder of the crate; an existing one is replaced")
    args = parser.parse_args()
    table, _ = summary.judged(args.config, args.results)
    found = run_data.collect(table, args.results)
    count = crate.write(args.output, args.config, found, args.results.resolve().parent)
    print(f"{args.output}: {len(found.runs)} runs, {count} files of inputs and results.")
