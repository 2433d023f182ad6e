"""Report the state of each run: done, alive, waiting in Slurm's queue and why,
finished without its driver, resumable from which step, or lost, and why.

Changes nothing: the next call of Snakemake does what this announces. Example:
shardlab status
"""

import argparse

from shardlab.runs.run_status import next_action, queue
from shardlab.settings import load, resolve


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load.add_config_argument(parser)
    load.add_results_argument(parser)
    args = parser.parse_args()
    planned, _ = resolve.matrix(args.config)
    queued = queue(args.results.resolve().parent)
    for run in planned:
        folder = args.results / run.strategy / run.workload
        print(f"{f'{run.strategy} x {run.workload}':<32} {next_action(run, folder, queued)}")
