"""The pipeline bubble: the time that ranks sit idle."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import bars, ticks
from shardlab.report.run_data import RunData

TITLE = "Pipeline bubble"
CAPTION = (
    "Fraction of the forward and backward passes that a rank sits idle (mean over the ranks). The gray mark is the "
    "theoretical bubble, (p - 1) / (m + p - 1) for m micro-batches on p ranks whose stages take equally long."
)


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, idle, theory (fractions)."""
    rows = [
        (run.train.strategy, sum(run.train.idle) / len(run.train.idle), run.train.idle_theory)
        for run in run_data.runs
        if run.train.idle
    ]
    return pd.DataFrame(rows, columns=["strategy", "idle", "theory"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One bar per strategy, with a mark for theory."""
    percent = alt.Axis(format=".0%")
    measured = bars(
        table,
        x=alt.X("idle:Q", title="idle", axis=percent, scale=alt.Scale(domain=[0, 1])),
        tooltip=["strategy", alt.Tooltip("idle:Q", format=".1%"), alt.Tooltip("theory:Q", format=".1%")],
    )
    return measured + ticks(table.dropna(subset=["theory"]), x="theory:Q")
