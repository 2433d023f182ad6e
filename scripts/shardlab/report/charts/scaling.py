"""Memory, traffic, and time per step over the number of ranks."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import HEIGHT, LEGEND, WIDTH, over_ranks
from shardlab.report.run_data import RunData

TITLE = "Scaling from one rank to eight"
CAPTION = (
    "One model under one strategy of each family: peak memory of a rank's tensors, bytes sent per step, and median "
    "time per step. All ranks shared one machine, so steps slow down once there are more ranks than cores."
)
PANELS = ("tensors MiB a rank", "sent MiB a rank and step", "step ms")


def table(run_data: RunData) -> pd.DataFrame:
    """Columns as benchmarks/scaling.py writes them: strategy, ranks, and one per panel."""
    return run_data.study("benchmarks/scaling.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A panel per quantity, a line per strategy."""
    x = over_ranks(table)
    color = alt.Color("strategy:N", legend=LEGEND, sort=list(dict.fromkeys(table.strategy)))
    lines = alt.Chart(table, width=WIDTH, height=HEIGHT // 2).mark_line(point=True)
    panels = [lines.encode(x, alt.Y(f"{panel}:Q"), color, tooltip=["strategy", "ranks", panel]) for panel in PANELS]
    return alt.vconcat(*panels)
