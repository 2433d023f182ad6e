"""Report the state of each run that was begun: done, alive, waiting in Slurm's queue and why, finished without its
driver, resumable from which step, or lost, and why.

Changes nothing: the next call of Snakemake does what this announces. With --watch, a table of all runs is updated on
the terminal until Ctrl-C; the runs continue.

Example: shardlab status
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.live import Live
from rich.table import Table

from shardlab.cli import at_least, program
from shardlab.runs.run_status import DONE, NOT_BEGUN, RunStatus, next_action, queue, status_of
from shardlab.settings import resolve
from shardlab.settings.config import Config

COLORS = {
    "running": "cyan",
    "resumed": "cyan",
    "failed": "red",
    "stale": "yellow",
    "stopped": "yellow",
    "queued": "blue",
    "waiting": "bright_black",
    "done": "green",
}
"""Color of a state; in this order, so that the last ones are missing on a screen that is too small."""
LOG_WIDTH = 160
"""Width of lines if the output is not a terminal."""


@program
def main(
    config: Config,
    results: Path,
    watch: Annotated[bool, "update a table of all runs: state, step, loss, speed, remaining time"] = False,
    every: Annotated[float, at_least(0.1), "seconds between updates (default: 2)"] = 2.0,
) -> None:
    """Print a line for each run that was begun, and how many there are; or watch them."""
    planned, _ = resolve.matrix(config)
    folders = [(run, results / run.strategy / run.workload) for run in planned]

    def look() -> Table:
        queued = queue(results.resolve().parent)
        return table([status_of(run, folder, queued) for run, folder in folders])

    if watch:
        show(Console(), look, every)
        return
    queued = queue(results.resolve().parent)
    actions = {f"{run.strategy} x {run.workload}": next_action(run, folder, queued) for run, folder in folders}
    for name, action in actions.items():
        if action != NOT_BEGUN:
            print(f"{name:<32} {action}")
    counts = Counter(action if action in (DONE, NOT_BEGUN) else "begun" for action in actions.values())
    print(f"{len(actions)} runs: {', '.join(f'{count} {what}' for what, count in counts.items())}")


def show(console: Console, look: Callable[[], Table], every: float) -> None:
    """Show the table until Ctrl-C, or once where the output is no terminal; ``every``: seconds between updates."""
    if not console.is_terminal:
        console.width = LOG_WIDTH
        console.print(look())
        return
    with suppress(KeyboardInterrupt), Live(look(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(look(), refresh=True)


def table(runs: list[RunStatus]) -> Table:
    """Return a row for each run, those first that need a look, with the number of runs in each state above."""
    numbers = Counter(run.state for run in runs)
    counts = ", ".join(f"{numbers[state]} {state}" for state in COLORS if numbers[state])
    columns = ("run", "state", "step", "loss", "samples/s", "left", "where")
    made = Table(*columns, title=f"{len(runs)} runs: {counts}", title_justify="left", box=None, pad_edge=False)
    for run in sorted(runs, key=lambda run: [*COLORS].index(run.state)):
        made.add_row(
            run.name,
            run.state,
            f"{run.step}/{run.steps}" if run.steps else str(run.step or ""),
            "" if run.loss is None else f"{run.loss:.4f}",
            f"{run.samples_per_second:.3g}" if run.samples_per_second else "",
            "" if run.seconds_left is None else str(timedelta(seconds=round(run.seconds_left))),
            run.why or run.where,
            style=COLORS[run.state],
        )
    return made
