"""Difference of each strategy to one device, step by step."""

import math

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import points
from shardlab.report.evidence import Evidence

TITLE = "Difference to one device"
CAPTION = (
    "Relative difference of each step's loss to that of `single`, on a logarithmic scale; at its bottom: bitwise "
    "equal. Gray line: the largest difference at the end of training that rounding alone caused in `single`'s twins."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """strategy, step, difference (relative), twins (the largest of theirs, the same in every row)."""
    steps = evidence.steps[evidence.steps.strategy != "single"].dropna(subset=["loss", "single"])
    difference = ((steps.loss - steps.single).abs() / steps.single.abs()).astype(float)
    spread = evidence.table.spread.max()
    twins = None if pd.isna(spread) else float(spread)
    return steps.assign(difference=difference, twins=twins)[["strategy", "step", "difference", "twins"]]


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One line per strategy, and the twins' largest difference."""
    # A logarithmic axis has no 0: use a decade below the smallest difference.
    there = table.difference[table.difference > 0]
    bottom = 10.0 ** (math.floor(math.log10(there.min())) - 1) if len(there) else 1e-17
    table = table.assign(difference=table.difference.clip(lower=bottom), twins=table.twins.clip(lower=bottom))
    scale = alt.Scale(type="log", domainMin=bottom, nice=False)
    y = alt.Y("difference:Q", title="relative difference", scale=scale, axis=alt.Axis(format=".0e", tickCount=6))
    curves = points(table, size=12, x=alt.X("step:Q", title="step"), y=y)
    if table.twins.isna().all():
        return curves
    rule = alt.Chart(table.head(1)).mark_rule(color="grey", strokeWidth=3, opacity=0.6)
    return curves + rule.encode(y="twins:Q", tooltip=[alt.Tooltip("twins:Q", title="farthest twin", format=".1e")])
