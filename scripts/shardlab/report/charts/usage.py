"""Resource use of the ranks."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import bars
from shardlab.report.evidence import Evidence

FIGURES = {"cpu_cores": "CPU cores busy", "device_use": "GPU in use (fraction)", "watts": "watts of a GPU"}
TITLE = "Resource use"
CAPTION = (
    "Use per rank during training, mean over samples and ranks: CPU cores, and the GPU if there is one. Runs shorter "
    "than the first sampling interval are missing."
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
    """A panel per quantity, a bar per strategy."""
    panels = [
        bars(
            part,
            x=alt.X("value:Q", title=str(label)),
            tooltip=["strategy", "figure", alt.Tooltip("value:Q", format=".3g")],
        )
        for label, part in table.groupby("figure", sort=False)
    ]
    return alt.vconcat(*panels)
