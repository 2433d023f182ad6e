"""What a checkpoint costs a training."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import ROW, WIDTH
from shardlab.report.evidence import Evidence

TITLE = "Cost of a checkpoint"
CAPTION = (
    "What a checkpoint takes from the training, in steps: written at once, or beside the training (the copy, and by "
    "how much the steps behind it are slower)."
)
KINDS = {"at once, in steps": "at once", "beside, in steps": "beside"}


def table(evidence: Evidence) -> pd.DataFrame:
    """As benchmarks/checkpoints.py writes it: strategy, size, checkpoint MiB, resume s, ..."""
    return evidence.study("benchmarks/checkpoints.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Two bars for each strategy and size."""
    named = table.assign(run=table.strategy + ", " + table["size"])
    long = named.melt(["run", "checkpoint MiB", "resume s"], [*KINDS], "written", "steps")
    long["written"] = long.written.map(KINDS)
    y = alt.Y("run:N", title=None, sort=list(dict.fromkeys(long.run)))
    chart = alt.Chart(long, width=WIDTH, height=2 * ROW * named.run.nunique()).mark_bar()
    color = alt.Color("written:N", title=None)
    return chart.encode(y, alt.X("steps:Q"), alt.YOffset("written:N"), color, tooltip=[*long.columns])
