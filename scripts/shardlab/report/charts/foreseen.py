"""What a plan said of memory, beside what was measured."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import bars, ticks
from shardlab.report.evidence import Evidence

TITLE = "Memory as planned and as measured"
CAPTION = (
    "Bars: the most that the tensors of one rank took at a time (MiB), as measured. Grey marks: what the plan said "
    "before (results/plan.md). error: by which part of the measured it was off. Neither counts the device's context, "
    "the buffers of communicators and the gaps between tensors (figures.unplanned_gib)."
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
