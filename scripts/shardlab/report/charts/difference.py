"""Difference of each strategy from one device, step by step."""

import math

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import labels, points
from shardlab.report.run_data import RunData

TITLE = "Difference from one device"
CAPTION = (
    "Relative difference between the loss of each step and that of `single`, on a logarithmic scale. Points at the "
    "bottom are bitwise equal. The gray line marks the final difference of the farthest twin, a copy of `single` that "
    "differs only by rounding."
)


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, family, step, difference (relative), noise_floor (the farthest of them, the same in every row)."""
    steps = run_data.steps[run_data.steps.strategy != "single"].dropna(subset=["loss", "single"])
    difference = ((steps.loss - steps.single).abs() / steps.single.abs()).astype(float)
    noise_floor = run_data.table.noise_floor.max()
    floor = None if pd.isna(noise_floor) else float(noise_floor)
    columns = ["strategy", "family", "step", "difference", "noise_floor"]
    return steps.assign(difference=difference, noise_floor=floor)[columns]


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A point per strategy and step, the name at its last step, and the twins' end."""
    # A logarithmic axis has no 0: a decade below the smallest difference stands for it.
    there = table.difference[table.difference > 0]
    bottom = 10.0 ** (math.floor(math.log10(there.min())) - 1) if len(there) else 1e-17
    table = table.assign(
        difference=table.difference.clip(lower=bottom), noise_floor=table.noise_floor.clip(lower=bottom)
    )
    scale = alt.Scale(type="log", domainMin=bottom, nice=False)
    y = alt.Y("difference:Q", title="relative difference", scale=scale, axis=alt.Axis(format=".0e", tickCount=6))
    last = table.groupby("strategy").tail(1).sort_values("difference", ascending=False)
    # Room for the names of the strategies on the right, those of the farthest first.
    x = alt.X("step:Q", title="step", scale=alt.Scale(domain=[0, 1.2 * max(1, last.step.max())], nice=False))
    tips = ["strategy", "family", "step", alt.Tooltip("difference:Q", format=".1e")]
    curves = points(table, size=12, x=x, y=y, tooltip=tips) + labels(last, "end-label", x=x, y=y)
    if table.noise_floor.isna().all():
        return curves
    rule = alt.Chart(table.head(1)).mark_rule(color="grey", strokeWidth=3, opacity=0.6)
    return curves + rule.encode(
        y="noise_floor:Q", tooltip=[alt.Tooltip("noise_floor:Q", title="farthest twin", format=".1e")]
    )
