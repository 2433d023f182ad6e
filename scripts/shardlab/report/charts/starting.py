"""Time to start the ranks."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import HEIGHT, WIDTH, over_ranks
from shardlab.report.run_data import RunData

TITLE = "Startup time"
CAPTION = (
    "Seconds until all ranks have finished their imports and joined the process group, over the number of ranks: "
    "forked by scripts/fork_torchrun.py, and with plain torchrun."
)


def table(run_data: RunData) -> pd.DataFrame:
    """Columns as benchmarks/starting.py writes them: ranks, started, seconds, CPU s, to the fewest."""
    return run_data.study("benchmarks/starting.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A line per way of starting."""
    x = over_ranks(table)
    base = alt.Chart(table, width=WIDTH, height=HEIGHT // 2).mark_line(point=True)
    return base.encode(x, alt.Y("seconds:Q"), alt.Color("started:N", title=None), tooltip=[*table.columns])
