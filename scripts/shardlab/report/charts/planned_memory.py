"""Planned memory compared with measured memory."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import bars, in_unit, text_tips, with_ticks
from shardlab.report.run_data import RunData

TITLE = "Planned and measured memory"
CAPTION = (
    "Bars: measured peak memory of all tensors on the fullest rank. Gray marks: the plan's prediction "
    "(results/plan.md). error: the prediction's deviation, relative to the measurement. Neither includes the device "
    "context, communicator buffers, or fragmentation (hardware.unplanned_gib)."
)


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, measured, planned (bytes), error."""
    known = run_data.table.dropna(subset=["tensor_bytes", "predicted_memory_bytes"])
    return pd.DataFrame(
        {
            "strategy": known.strategy,
            "measured": known.tensor_bytes.astype(float),
            "planned": known.predicted_memory_bytes.astype(float),
            "error": known.memory_error.astype(float),
        }
    )


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A bar and a mark per strategy."""
    table, unit = in_unit(table, "measured", "planned")
    shown = ["strategy", *text_tips("measured", "planned"), alt.Tooltip("error:Q", format="+.1%")]
    measured = bars(table, x=alt.X("measured:Q", title=unit), tooltip=shown)
    return with_ticks(measured, table, "planned", tooltip=shown)
