"""Cost of a checkpoint during training."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import ROW, WIDTH
from shardlab.report.run_data import RunData

TITLE = "Cost of a checkpoint"
CAPTION = (
    "Training time lost to one checkpoint, in steps: written synchronously, or asynchronously (the copy, plus the "
    "slowdown of the steps that follow)."
)
KINDS = {"at once, in steps": "synchronous", "beside, in steps": "asynchronous"}


def table(run_data: RunData) -> pd.DataFrame:
    """Columns as benchmarks/checkpoints.py writes them: strategy, size, checkpoint MiB, resume s, ..."""
    return run_data.study("benchmarks/checkpoints.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Two bars per strategy and size."""
    named = table.assign(run=table.strategy + ", " + table["size"])
    long = named.melt(["run", "checkpoint MiB", "resume s"], [*KINDS], "written", "steps")
    long["written"] = long.written.map(KINDS)
    y = alt.Y("run:N", title=None, sort=list(dict.fromkeys(long.run)))
    chart = alt.Chart(long, width=WIDTH, height=2 * ROW * named.run.nunique()).mark_bar()
    color = alt.Color("written:N", title=None)
    return chart.encode(y, alt.X("steps:Q"), alt.YOffset("written:N"), color, tooltip=[*long.columns])
