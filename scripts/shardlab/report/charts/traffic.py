"""Bytes sent per rank and step, compared with theory."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import LONG, bars, ticks
from shardlab.report.evidence import Evidence

TITLE = "Bytes sent"
CAPTION = (
    "MiB sent per rank and step (mean over the ranks), counted, by collective and mesh axis. Gray mark: the sum "
    "computed from sizes and shapes alone, if a formula is known."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """strategy, collective, mib (counted), theory (sum, the same in every row of a strategy)."""
    rows = [
        (
            run.train.strategy,
            f"{entry.collective} ({entry.axis})",
            entry.bytes / 2**20,
            None if run.train.bytes_per_step_theory is None else run.train.bytes_per_step_theory / 2**20,
        )
        for run in evidence.runs
        for entry in run.train.traffic or []
    ]
    return pd.DataFrame(rows, columns=["strategy", "collective", "mib", "theory"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One stacked bar per strategy, with a mark for theory."""
    counted = bars(
        table,
        x=alt.X("mib:Q", title="MiB per step and rank"),
        color=alt.Color("collective:N", scale=alt.Scale(scheme="tableau20"), legend=LONG),
        tooltip=["strategy", "collective", alt.Tooltip("mib:Q", format=".3g")],
    )
    known = table.dropna(subset=["theory"]).drop_duplicates("strategy")
    return counted + ticks(known, x="theory:Q", tooltip=["strategy", alt.Tooltip("theory:Q", format=".3g")])
