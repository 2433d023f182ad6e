"""Watch all runs: their state, step, loss, speed and remaining time, from the run
folders and Slurm's queue.

Ends with q or Ctrl-C; the runs continue. Without a terminal, or with --once,
the table is printed once.
Example: shardlab watch
"""

import argparse
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from rich.console import Console
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.widgets import DataTable, Footer, Static

from shardlab.cli import at_least
from shardlab.runs.run_status import RunStatus, queue, status_of
from shardlab.settings import load, resolve
from shardlab.settings.types import Run

COLUMNS = ("run", "state", "step", "loss", "curve", "samples/s", "left", "where")
COLOURS = {
    "running": "cyan",
    "resumed": "cyan",
    "done": "green",
    "failed": "red",
    "stale": "yellow",
    "stopped": "yellow",
    "queued": "blue",
    "waiting": "bright_black",
}
BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 10
"""Width of a curve, in blocks."""
LOG_WIDTH = 160
"""Width of lines if the output is not a terminal."""


def main() -> None:
    """Show the table until a key is pressed, or once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load.add_config_argument(parser)
    load.add_results_argument(parser)
    parser.add_argument("--once", action="store_true", help="print the table once")
    parser.add_argument("--every", type=at_least(0.1), default=2.0, help="seconds between updates (2)")
    args = parser.parse_args()
    planned, _ = resolve.matrix(args.config)
    if args.once or not sys.stdout.isatty():
        statuses = see(planned, args.results)
        table = Table(*COLUMNS, box=None, pad_edge=False)
        for each in statuses:
            table.add_row(*cells(each))
        Console(width=None if sys.stdout.isatty() else LOG_WIDTH).print(table, counts(statuses), sep="\n")
        return
    Watch(planned, args.results, args.every).run()


def see(planned: list[Run], results: Path) -> list[RunStatus]:
    """Return the current status of all runs."""
    queued = queue(results.resolve().parent)
    return [status_of(run, results / run.strategy / run.workload, queued) for run in planned]


def cells(found: RunStatus) -> list[Text]:
    """Format a row of the table: short enough for 80 columns with short names."""
    step = f"{found.step}/{found.steps}" if found.steps else (str(found.step) if found.step else "")
    speed = f"{found.samples_per_second:.3g}" if found.samples_per_second else ""
    loss = f"{found.losses[-1]:.4f}" if found.losses else ""
    texts = [found.name, found.state, step, loss, curve(found.losses), speed, clock(found.seconds_left)]
    return [Text(text, COLOURS[found.state]) for text in [*texts, found.why or found.where]]


def curve(losses: list[float]) -> str:
    """Format a loss curve as one line of blocks, each the mean of an equal number of steps."""
    if not losses:
        return ""
    count = min(WIDTH, len(losses))
    edges = [len(losses) * index // count for index in range(count + 1)]
    means = [sum(losses[start:stop]) / (stop - start) for start, stop in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def clock(seconds: float | None) -> str:
    """Format hours, minutes and seconds: 1:02:03, 2:03."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counts(statuses: list[RunStatus]) -> str:
    """Format the number of runs in each state."""
    numbers = Counter(each.state for each in statuses)
    return f"{len(statuses)} run{'s' * (len(statuses) != 1)}: " + ", ".join(
        f"{numbers[state]} {state}" for state in COLOURS if numbers[state]
    )


class Watch(App[None]):
    """The table on a terminal."""

    BINDINGS: ClassVar = [("q", "quit", "Quit; the runs continue"), ("ctrl+c", "quit", "Quit")]
    ENABLE_COMMAND_PALETTE = False
    CSS = "DataTable { height: 1fr; } #counts { padding: 0 1; }"

    def __init__(self, planned: list[Run], results: Path, every: float) -> None:
        """``every``: seconds between updates."""
        super().__init__(ansi_color=True)
        self.planned, self.results, self.every = planned, results, every

    def compose(self) -> ComposeResult:
        """Counts, table, keys."""
        yield Static(id="counts")
        yield DataTable(cursor_type="row", zebra_stripes=False)
        yield Footer()

    def on_mount(self) -> None:
        """Show the table and start the timer."""
        self.query_one(DataTable).add_columns(*COLUMNS)
        self.refresh_table()
        self.set_interval(self.every, self.refresh_table)

    def refresh_table(self) -> None:
        """Update the table, keeping cursor and scroll position."""
        statuses = see(self.planned, self.results)
        table = self.query_one(DataTable)
        for number, each in enumerate(statuses):
            row = cells(each)
            if number >= table.row_count:
                table.add_row(*row, key=each.name)
                continue
            for column, cell in enumerate(row):
                table.update_cell_at((number, column), cell, update_width=True)  # type: ignore[arg-type]
        self.query_one("#counts", Static).update(counts(statuses))
