"""Report the state of each run that was begun: done, alive, waiting in Slurm's
queue and why, finished without its driver, resumable from which step, or lost,
and why.

Changes nothing: the next call of Snakemake does what this announces. Example:
shardlab status
"""

import argparse
from collections import Counter

from shardlab.runs.run_status import DONE, NOT_BEGUN, next_action, queue
from shardlab.settings import load, resolve


def main() -> None:
    """Print a line for each run that was begun, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load.add_config_argument(parser)
    load.add_results_argument(parser)
    args = parser.parse_args()
    planned, _ = resolve.matrix(args.config)
    queued = queue(args.results.resolve().parent)
    actions = {
        f"{run.strategy} x {run.workload}": next_action(run, args.results / run.strategy / run.workload, queued)
        for run in planned
    }
    for name, action in actions.items():
        if action != NOT_BEGUN:
            print(f"{name:<32} {action}")
    counts = Counter(action if action in (DONE, NOT_BEGUN) else "other" for action in actions.values())
    print(f"{len(actions)} runs: {', '.join(f'{count} {what}' for what, count in counts.items())}")
