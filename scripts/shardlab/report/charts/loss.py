"""Loss curves of all strategies in one chart."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import lines
from shardlab.report.evidence import Evidence

TITLE = "Training loss"
CAPTION = (
    "Loss of each training step under every strategy. Equal strategies coincide. Click a name in the legend to "
    "see it alone, shift-click for more."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """strategy, step, loss."""
    return evidence.steps[["strategy", "step", "loss"]].dropna()


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One line per strategy."""
    y = alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False))
    return lines(table, x=alt.X("step:Q", title="step"), y=y)
