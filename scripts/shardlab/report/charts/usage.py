"""What the ranks used of their machines."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import bars
from shardlab.report.evidence import Evidence

FIGURES = {"cpu_cores": "CPU cores busy", "device_use": "GPU in use (part of 1)", "watts": "watts of a GPU"}
TITLE = "Use of the machines"
CAPTION = (
    "What a rank used while it trained, mean of its samples and of the ranks: CPU cores, and where there is one its "
    "GPU. Runs that were shorter than the first sample are not there."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """strategy, figure, value."""
    rows = []
    for run in evidence.runs:
        for name, label in FIGURES.items():
            known = [value for record in run.usage for value in record.get(name, ()) if value is not None]
            if known:
                rows.append((run.train.strategy, label, sum(known) / len(known)))
    return pd.DataFrame(rows, columns=["strategy", "figure", "value"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A panel for each figure, a bar per strategy."""
    panels = [
        bars(
            part,
            x=alt.X("value:Q", title=str(label)),
            tooltip=["strategy", "figure", alt.Tooltip("value:Q", format=".3g")],
        )
        for label, part in table.groupby("figure", sort=False)
    ]
    return alt.vconcat(*panels)
