"""Report the state of each configured run: done, alive, waiting in Slurm's queue and why, finished without its
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
from shardlab.runs.run_status import DONE, NOT_BEGUN, Progress, next_action, progress, queue
from shardlab.settings import resolve
from shardlab.settings.config import Config

COLORS = {"": "yellow", "alive": "cyan", "job": "blue", NOT_BEGUN: "bright_black", DONE: "green"}
"""Color of a run by how its next action begins; in this order, so that the last ones are missing on a screen that is
too small.
"""


@program
def main(
    config: Config,
    results: Path,
    watch: Annotated[bool, "update a table of all runs: step, loss, speed, remaining time, next action"] = False,
    every: Annotated[float, at_least(0.1), "seconds between updates (default: 2)"] = 2.0,
) -> None:
    """Print a line for each run that was begun, and how many there are; or watch them."""
    planned, _ = resolve.matrix(config)
    folders = [(run, results / run.strategy / run.workload) for run in planned]

    def look() -> dict[str, str]:
        queued = queue(results.resolve().parent)
        return {f"{run.strategy} x {run.workload}": next_action(run, folder, queued) for run, folder in folders}

    if watch and Console().is_terminal:
        show(Console(), lambda: table(look(), [progress(folder) for _, folder in folders]), every)
        return
    actions = look()
    for name, action in actions.items():
        if action != NOT_BEGUN:
            print(f"{name:<32} {action}")
    print(counted(actions))


def counted(actions: dict[str, str]) -> str:
    """Return how many runs there are, done, begun and not begun."""
    counts = Counter(action if action in (DONE, NOT_BEGUN) else "begun" for action in actions.values())
    return f"{len(actions)} runs: {', '.join(f'{count} {what}' for what, count in counts.items())}"


def show(console: Console, look: Callable[[], Table], every: float) -> None:
    """Show the table until Ctrl-C; ``every``: seconds between updates."""
    with suppress(KeyboardInterrupt), Live(look(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(look(), refresh=True)


def table(actions: dict[str, str], steps: list[Progress]) -> Table:
    """Return a row for each run, those first that need a look."""
    columns = ("run", "step", "loss", "samples/s", "left", "next")
    made = Table(*columns, title=counted(actions), title_justify="left", box=None, pad_edge=False)
    for column in made.columns[:-1]:
        column.no_wrap = True
    kinds = {name: [kind for kind in COLORS if action.startswith(kind)][-1] for name, action in actions.items()}
    rows = zip(actions.items(), steps, strict=True)
    for (name, action), done in sorted(rows, key=lambda row: [*COLORS].index(kinds[row[0][0]])):
        left = done.seconds_left if kinds[name] == "alive" else None
        made.add_row(
            name,
            f"{done.step}/{done.steps}" if done.steps else str(done.step or ""),
            "" if done.loss is None else f"{done.loss:.4f}",
            f"{done.samples_per_second:.3g}" if done.samples_per_second else "",
            "" if left is None else str(timedelta(seconds=round(left))),
            action,
            style=COLORS[kinds[name]],
        )
    return made
