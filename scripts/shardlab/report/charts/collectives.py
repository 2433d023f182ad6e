"""Latency and bandwidth of the collectives."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import HEIGHT, LEGEND, WIDTH
from shardlab.report.run_data import RunData

TITLE = "Collectives"
CAPTION = (
    "Time and bus bandwidth of each collective over the message size, on logarithmic axes: a reference for the "
    "messages of a training step."
)


def table(run_data: RunData) -> pd.DataFrame:
    """Columns as collectives.py writes them: site, ranks, nodes, collective, bytes, microseconds, bus_gb_per_second."""
    return run_data.study("collectives/*.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Two panels over the message size, one line per collective."""
    log = alt.Scale(type="log")
    x = alt.X("bytes:Q", title="message (bytes)", scale=alt.Scale(type="log", base=2), axis=alt.Axis(format="~s"))
    panels = [
        alt.Chart(table[table[column] > 0], width=WIDTH, height=HEIGHT // 2)
        .mark_line(point=True)
        .encode(x, alt.Y(f"{column}:Q", title=label, scale=log), alt.Color("collective:N", legend=LEGEND))
        for column, label in (("microseconds", "time (µs)"), ("bus_gb_per_second", "bus bandwidth (GB/s)"))
    ]
    first = table.iloc[0]
    title = f"Collectives at site {first['site']}: {first['ranks']} ranks on {first['nodes']} node(s)"
    return alt.vconcat(*panels, title=title)
