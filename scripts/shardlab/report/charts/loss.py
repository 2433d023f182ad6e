"""Loss curves of all strategies in one chart."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import lines
from shardlab.report.run_data import RunData

TITLE = "Training loss"
CAPTION = (
    "Loss at each training step, one curve per strategy. Curves of equal strategies coincide. Hover over a curve to "
    "highlight its strategy; click a family in the legend to show it alone, shift-click to add another."
)


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, family, step, loss."""
    return run_data.steps[["strategy", "family", "step", "loss"]].dropna()


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    y = alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False))
    return lines(table, x=alt.X("step:Q", title="step"), y=y)
