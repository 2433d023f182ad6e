"""Report the state of each configured run: done, alive, waiting in Slurm's queue and why, finished without its
driver, resumable from which step, or lost, and why; and how far it is.

Changes nothing: the next call of Snakemake does what this announces. Example: watch shardlab status
"""

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from tabulate import tabulate

from shardlab.cli import program
from shardlab.files import write_json
from shardlab.runs.run_status import DONE, NOT_BEGUN, Progress, next_action, progress, queue
from shardlab.settings import resolve as runs
from shardlab.settings.config import Config
from shardlab.settings.types import sealed

HEADS = ("run", "step", "loss", "samples/s", "left", "next")


@program
def main(config: Config, results: Path) -> None:
    """Print a line for each run that was begun, and how many there are."""
    queued = queue(results.resolve().parent)
    rows: list[list[str]] = []
    counts: Counter[str] = Counter()
    for run in runs.matrix(config)[0]:
        folder = results / run.strategy / run.workload
        action = next_action(run, folder, queued)
        counts[action if action in (DONE, NOT_BEGUN) else "begun"] += 1
        if action != NOT_BEGUN:
            name = f"{run.strategy} x {run.workload}"
            rows.append([name, *figures(progress(folder), alive=action.startswith("alive")), action])
    if rows:
        print(tabulate(rows, HEADS, tablefmt="plain", disable_numparse=True))
    print(f"{counts.total()} runs: {', '.join(f'{count} {what}' for what, count in counts.items())}")


def figures(done: Progress, *, alive: bool) -> list[str]:
    """Format how far a run is; the remaining time of one that is ``alive``."""
    left = done.seconds_left if alive else None
    return [
        f"{done.step}/{done.steps}" if done.steps else str(done.step or ""),
        "" if done.loss is None else f"{done.loss:.4f}",
        f"{done.samples_per_second:.3g}" if done.samples_per_second else "",
        "" if left is None else str(timedelta(seconds=round(left))),
    ]


@program
def resolve(
    config: Config,
    strategy: str,
    workload: str,
    output: Annotated[Path | None, "run.json to write; without it, print it"] = None,
) -> None:
    """Resolve one run: check the configuration, and print or write its complete settings, as the workflow does."""
    run = sealed(runs.run(config, strategy, workload))
    if output:
        write_json(output, run)
    else:
        print(json.dumps(run, indent=2))
