"""Write the bill of a folder's jobs: hours of GPUs planned, requested, used and lost,
by stage and strategy, from Slurm's accounting or the runs' own times.

Example: shardlab bill
"""

import argparse
from pathlib import Path

from shardlab.files import write_text
from shardlab.records import plan
from shardlab.report import bill
from shardlab.runs import job_use, planned_hours
from shardlab.settings import load, resolve
from shardlab.settings.config import Config


def main() -> None:
    """Write bill.md and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load.add_config_argument(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    args = parser.parse_args()
    text = bill.markdown(made(args.config, args.results))
    write_text(args.results / "bill.md", text)
    print(text)


def made(config: Config, results: Path) -> bill.Bill:
    """Return the bill of a call's runs, and of all jobs that Slurm accounted for in this folder."""
    runs, _ = resolve.matrix(config)
    uses, source = job_use.uses(load.site(config), runs, results)
    planned = planned_hours.by_strategy(runs, lambda run: plan.find(run, *plan.places(results, run)))
    return bill.bill(uses, planned, source)
