"""Memory, traffic and step time by the number of ranks."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import HEIGHT, LEGEND, WIDTH, over_ranks
from shardlab.report.evidence import Evidence

TITLE = "From one rank to eight"
CAPTION = (
    "One model under each family of strategies, by the number of ranks: peak of a rank's tensors, bytes sent per rank "
    "and step, and median step time. All ranks shared one machine; its number of cores limits the step time."
)
PANELS = ("tensors MiB a rank", "sent MiB a rank and step", "step ms")


def table(evidence: Evidence) -> pd.DataFrame:
    """Columns as benchmarks/scaling.py writes them: strategy, ranks, and one per panel."""
    return evidence.study("benchmarks/scaling.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A panel per quantity, a line per strategy."""
    x = over_ranks(table)
    color = alt.Color("strategy:N", legend=LEGEND, sort=list(dict.fromkeys(table.strategy)))
    lines = alt.Chart(table, width=WIDTH, height=HEIGHT // 2).mark_line(point=True)
    panels = [lines.encode(x, alt.Y(f"{panel}:Q"), color, tooltip=["strategy", "ranks", panel]) for panel in PANELS]
    return alt.vconcat(*panels)
