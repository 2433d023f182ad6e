"""The pipeline bubble: the time that ranks sit idle."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import bars, with_ticks
from shardlab.report.run_data import RunData
from shardlab.settings.types import Run

TITLE = "Pipeline bubble"
CAPTION = (
    "Fraction of the forward and backward passes that a rank sits idle (mean over the ranks). The gray mark is the "
    "bubble if all stages take equally long: (p - 1) / (m + p - 1) for m micro-batches on p ranks."
)


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, idle, planned (fractions)."""
    rows = [
        (train.strategy, sum(train.idle) / len(train.idle), Run.model_validate(train.settings).pipeline_bubble)
        for train in (run.train for run in run_data.runs)
        if train.idle
    ]
    return pd.DataFrame(rows, columns=["strategy", "idle", "planned"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One bar per strategy, with a mark for equal stages."""
    percent = alt.Axis(format=".0%")
    measured = bars(
        table,
        x=alt.X("idle:Q", title="idle", axis=percent, scale=alt.Scale(domain=[0, 1])),
        tooltip=["strategy", alt.Tooltip("idle:Q", format=".1%"), alt.Tooltip("planned:Q", format=".1%")],
    )
    return with_ticks(measured, table, "planned")
