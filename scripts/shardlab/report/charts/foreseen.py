"""Planned memory compared with measured memory."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import bars, ticks
from shardlab.report.evidence import Evidence

TITLE = "Planned and measured memory"
CAPTION = (
    "Bars: measured peak of the tensors of one rank (MiB). Gray marks: the plan made before (results/plan.md). error: "
    "relative error of the plan. Neither includes the device's context, the buffers of communicators and "
    "fragmentation (figures.unplanned_gib)."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """strategy, measured, planned (MiB), error."""
    known = evidence.table.dropna(subset=["tensor_bytes", "predicted_memory_bytes"])
    return pd.DataFrame(
        {
            "strategy": known.strategy,
            "measured": known.tensor_bytes.astype(float) / 2**20,
            "planned": known.predicted_memory_bytes.astype(float) / 2**20,
            "error": known.memory_error.astype(float),
        }
    )


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A bar and a mark per strategy."""
    shown = [
        "strategy",
        *(alt.Tooltip(f"{name}:Q", format=".3g", title=f"{name} MiB") for name in ("measured", "planned")),
        alt.Tooltip("error:Q", format="+.1%"),
    ]
    measured = bars(table, x=alt.X("measured:Q", title="MiB"), tooltip=shown)
    return measured + ticks(table, x="planned:Q", tooltip=shown)
