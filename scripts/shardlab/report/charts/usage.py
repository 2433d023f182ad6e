"""CPU and GPU use of the ranks."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import bars
from shardlab.report.run_data import RunData

FIGURES = {"cpu_cores": "CPU cores busy", "device_use": "GPU utilization (0 to 1)", "watts": "GPU power (W)"}
TITLE = "Resource use"
CAPTION = (
    "CPU and GPU use per rank during training, averaged over samples and ranks. Runs that ended before the first "
    "sample are missing."
)


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, figure, value."""
    rows = []
    for run in run_data.runs:
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
