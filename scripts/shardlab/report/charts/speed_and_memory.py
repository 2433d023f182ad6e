"""Time per step against memory: what each strategy trades for what."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import BYTES, SECONDS, byte_ticks, labels, points
from shardlab.report.run_data import RunData
from shardlab.report.units import readable_bytes, readable_seconds

TITLE = "Time per step and memory"
CAPTION = (
    "Median time per step against the peak memory of all tensors on the rank that held the most, both on logarithmic "
    "scales: lower left is better. Color and shape show the family. Names that would overlap are left out; hover over "
    "a mark for its name and figures."
)
COLUMNS = ["strategy", "family", "ranks", "step_seconds", "samples_per_second", "tensor_bytes"]


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, family, ranks, step_seconds (median), samples_per_second, tensor_bytes (of the fullest rank)."""
    rows = [
        (
            train.strategy,
            run_data.families[train.strategy],
            train.world_size,
            train.step_seconds_median,
            train.samples_per_second,
            train.held(),
        )
        for train in (run.train for run in run_data.runs)
    ]
    return pd.DataFrame(rows, columns=COLUMNS).dropna(subset=["step_seconds", "tensor_bytes"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One point per strategy, with its name where there is room."""
    table = table.assign(memory=table.tensor_bytes.map(readable_bytes), time=table.step_seconds.map(readable_seconds))
    ticks = byte_ticks(float(table.tensor_bytes.min()), float(table.tensor_bytes.max()))
    x = alt.X(
        "tensor_bytes:Q",
        title="memory per rank",
        scale=alt.Scale(type="log", base=2, padding=24, nice=False),
        axis=alt.Axis(labelExpr=BYTES, labelOverlap=True, values=ticks),
    )
    y = alt.Y(
        "step_seconds:Q",
        title="time per step",
        scale=alt.Scale(type="log", padding=16, nice=False),
        axis=alt.Axis(labelExpr=SECONDS, labelOverlap=True, tickCount=5),
    )
    tips = [
        "strategy",
        "family",
        "ranks",
        alt.Tooltip("time:N", title="time per step"),
        alt.Tooltip("memory:N", title="memory per rank"),
        alt.Tooltip("samples_per_second:Q", title="samples/s", format=".3s"),
    ]
    return points(table, tooltip=tips, x=x, y=y) + labels(table, x=x, y=y)
