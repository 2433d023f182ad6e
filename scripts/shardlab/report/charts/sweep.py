"""Validation loss over a swept key."""

import altair as alt
import pandas as pd

from shardlab.report import sweep_table
from shardlab.report.charts.helpers import HEIGHT, WIDTH, chosen_workload
from shardlab.report.run_data import RunData

TITLE = "Validation loss over the swept values"
CAPTION = (
    "Each point is the mean over the seeds of one variant; error bars show one standard deviation. There is one line "
    "per strategy and combination of the other keys. The x axis is the key with the most values."
)
COLUMNS = ["workload", "variant", "key", "value", "number", "mean", "low", "high", "runs"]


def table(run_data: RunData) -> pd.DataFrame:
    """workload, variant (strategy and other keys), key (its name), value (text), number, mean, low, high, runs."""
    variant_rows = sweep_table.table(run_data.table).dropna(subset=["validation_mean"])
    keys = sweep_table.keys(variant_rows)
    if not keys or not len(variant_rows):
        return pd.DataFrame(columns=COLUMNS)
    key = max(keys, key=lambda name: variant_rows[name].nunique())
    others = [name for name in keys if name != key]
    rows = variant_rows.to_dict("records")
    mean, spread = variant_rows.validation_mean.astype(float), variant_rows.validation_std.astype(float).fillna(0.0)
    return pd.DataFrame(
        {
            "workload": variant_rows.workload,
            "variant": [" ".join([row["strategy"], *(f"{n}={row[n]}" for n in others if row[n])]) for row in rows],
            "key": key,
            "value": variant_rows[key],
            "number": pd.to_numeric(variant_rows[key], errors="coerce"),
            "mean": mean,
            "low": mean - spread,
            "high": mean + spread,
            "runs": variant_rows.done,
        }
    )


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A line per variant, a point and a bar per value."""
    key = str(table.key.iloc[0])
    if table.number.notna().all():
        ratio = table.number.max() / table.number.min() if table.number.min() > 0 else 0.0
        x = alt.X("number:Q", title=key, scale=alt.Scale(type="log" if ratio >= 10 else "linear", zero=False))
    else:
        x = alt.X("value:N", title=key, sort=list(dict.fromkeys(table.value)))
    tips = ["workload", "variant", alt.Tooltip("value", title=key), alt.Tooltip("mean:Q", format=".6g"), "runs"]
    base = alt.Chart(table, width=WIDTH, height=HEIGHT).encode(x, alt.Color("variant:N", title=None))
    y = alt.Y("mean:Q", title="validation loss", scale=alt.Scale(zero=False))
    lines = base.mark_line(strokeWidth=1).encode(y)
    bars = base.mark_rule().encode(alt.Y("low:Q"), alt.Y2("high:Q"))
    points = base.mark_point(filled=True, size=60).encode(y, tooltip=tips)
    return chosen_workload(lines + bars + points, table)
