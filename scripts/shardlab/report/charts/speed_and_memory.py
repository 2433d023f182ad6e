"""Time per step against memory: what each strategy trades for what."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import labels, points
from shardlab.report.run_data import RunData
from shardlab.report.units import readable_bytes

TITLE = "Time per step and memory"
CAPTION = (
    "Time per step against the peak memory of all tensors on the rank that held the most, both relative to single's "
    "and on logarithmic scales: lower left is better. Names that would overlap are left out; hover over a mark for its "
    "name and figures."
)
COLUMNS = ["strategy", "family", "ranks", "samples_per_second", "tensor_bytes"]


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, family, ranks, samples_per_second, tensor_bytes (of the fullest rank); memory and time: as multiples of
    those of the strategy ``base``, which is ``single`` or, without it, the first one.
    """
    rows = [
        (
            train.strategy,
            run_data.families[train.strategy],
            train.world_size,
            train.samples_per_second,
            train.held(),
        )
        for train in (run.train for run in run_data.runs)
    ]
    known = pd.DataFrame(rows, columns=COLUMNS).dropna()
    if known.empty:
        return known
    base = known.iloc[int(known.strategy.eq("single").argmax())]
    return known.assign(
        memory=known.tensor_bytes / base.tensor_bytes,
        time=base.samples_per_second / known.samples_per_second,
        base=base.strategy,
    )


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One point per strategy, with its name where there is room: first those with the least memory for their time."""
    table = table.assign(held=table.tensor_bytes.map(readable_bytes)).sort_values(["memory", "time"])
    beaten = table.time.cummin().shift().le(table.time)
    table = pd.concat([table[~beaten], table[beaten]])
    of = table.base.iloc[0]
    scale = alt.Scale(type="log", base=2, nice=False)
    x = alt.X("memory:Q", title=f"memory (% of {of})", scale=scale, axis=_axis("format(datum.value, '.3~%')"))
    y = alt.Y("time:Q", title=f"time (\u00d7 {of})", scale=scale, axis=_axis("format(datum.value, '.3~g') + '\u00d7'"))
    tips = [
        "strategy",
        "family",
        "ranks",
        alt.Tooltip("held:N", title="memory per rank"),
        alt.Tooltip("memory:Q", title=f"of {of}'s", format=".3~%"),
        alt.Tooltip("time:Q", title=f"time per step / {of}'s", format=".3~g"),
        alt.Tooltip("samples_per_second:Q", title="samples/s", format=".3s"),
    ]
    return points(table, tooltip=tips, x=x, y=y) + labels(table, x=x, y=y)


def _axis(labels: str) -> alt.Axis:
    """An axis with few ticks; ``labels``: Vega's expression for them."""
    return alt.Axis(labelExpr=labels, labelOverlap=True, tickCount=5)
