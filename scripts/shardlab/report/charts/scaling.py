"""Memory, bytes and step time over the number of ranks."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import HEIGHT, LEGEND, WIDTH, over_ranks
from shardlab.report.evidence import Evidence

TITLE = "From one rank to eight"
CAPTION = (
    "One model under each family of strategies: the most that the tensors of a rank took, what a rank sent in a step, "
    "and the median step, over the ranks. All shared one machine: where it has fewer cores, that is what steps show."
)
PANELS = ("tensors MiB a rank", "sent MiB a rank and step", "step ms")


def table(evidence: Evidence) -> pd.DataFrame:
    """As benchmarks/scaling.py writes it: strategy, ranks, and a column for each panel."""
    return evidence.study("benchmarks/scaling.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A panel for each figure, a line for each strategy."""
    x = over_ranks(table)
    color = alt.Color("strategy:N", legend=LEGEND, sort=list(dict.fromkeys(table.strategy)))
    lines = alt.Chart(table, width=WIDTH, height=HEIGHT // 2).mark_line(point=True)
    panels = [lines.encode(x, alt.Y(f"{panel}:Q"), color, tooltip=["strategy", "ranks", panel]) for panel in PANELS]
    return alt.vconcat(*panels)
