"""Cost of starting ranks."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import HEIGHT, WIDTH, over_ranks
from shardlab.report.evidence import Evidence

TITLE = "Starting ranks"
CAPTION = (
    "Seconds until all ranks have imported what a training needs and joined the process group, by their number: "
    "forked by scripts/ranks.py, or started by plain torchrun."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """Columns as benchmarks/starting.py writes them: ranks, started, seconds, CPU s, to the fewest."""
    return evidence.study("benchmarks/starting.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A line per way of starting."""
    x = over_ranks(table)
    base = alt.Chart(table, width=WIDTH, height=HEIGHT // 2).mark_line(point=True)
    return base.encode(x, alt.Y("seconds:Q"), alt.Color("started:N", title=None), tooltip=[*table.columns])
