"""Throughput against memory of the strategies."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import points
from shardlab.report.evidence import Evidence

TITLE = "Throughput and memory"
CAPTION = (
    "Samples per second of the whole run against the peak of one rank's tensors (MiB), both logarithmic. Better is up "
    "and to the left."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """strategy, ranks, samples_per_second, tensors_mib."""
    rows = evidence.table.dropna(subset=["samples_per_second", "tensor_bytes"])
    return pd.DataFrame(
        {
            "strategy": rows.strategy,
            "ranks": rows.world_size.astype(int),
            "samples_per_second": rows.samples_per_second.astype(float),
            "tensors_mib": rows.tensor_bytes.astype(float) / 2**20,
        }
    )


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One point per strategy; its shape is the number of ranks."""
    scale = alt.Scale(type="log", padding=20, nice=False)
    return points(
        table,
        x=alt.X("tensors_mib:Q", title="tensors per rank (MiB)", scale=scale, axis=alt.Axis(format="~g")),
        y=alt.Y("samples_per_second:Q", title="samples/s", scale=scale, axis=alt.Axis(format="~s")),
        shape=alt.Shape("ranks:N", legend=alt.Legend(title="ranks", orient="right")),
    )
