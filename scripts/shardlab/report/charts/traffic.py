"""Bytes that a rank sends in a step, measured and planned."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import LONG, bars, in_unit, text_tips, with_ticks
from shardlab.report.run_data import RunData

TITLE = "Bytes sent"
CAPTION = (
    "Bytes sent per step and rank (mean over the ranks), counted by collective and mesh axis. The gray mark is the "
    "total of the plan (results/plan.md)."
)


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, collective, bytes (counted), planned (sum, the same in every row of a strategy)."""
    rows = [
        (
            run.train.strategy,
            f"{entry.collective} ({entry.axis})",
            entry.bytes,
            run.plan.predicted_bytes_per_step if run.plan else None,
        )
        for run in run_data.runs
        for entry in run.train.traffic or []
    ]
    return pd.DataFrame(rows, columns=["strategy", "collective", "bytes", "planned"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One stacked bar per strategy, with a mark at the planned total."""
    table, unit = in_unit(table, "bytes", "planned")
    counted = bars(
        table,
        x=alt.X("bytes:Q", title=f"{unit} per step and rank"),
        color=alt.Color("collective:N", scale=alt.Scale(scheme="tableau20"), legend=LONG),
        tooltip=["strategy", "collective", *text_tips("bytes")],
    )
    return with_ticks(counted, table, "planned", tooltip=["strategy", *text_tips("planned")])
