"""Timeline of the workflow's jobs."""

import altair as alt
import pandas as pd

from shardlab.report.evidence import Evidence

TITLE = "Jobs of the workflow"
CAPTION = (
    "Last execution of each job whose files exist, by rule, in seconds since the first one; later calls are appended. "
    "From Snakemake's metadata."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """rule, name (its first output), start, end (seconds)."""
    return evidence.jobs


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One bar per job."""
    order = list(dict.fromkeys(table.rule))
    return (
        alt.Chart(table, width=900, height=22 * len(order))
        .mark_bar(opacity=0.6)
        .encode(
            alt.X("start:Q", title="seconds"),
            alt.X2("end:Q"),
            alt.Y("rule:N", title=None, sort=order),
            alt.Color("rule:N", legend=None, scale=alt.Scale(scheme="tableau20")),
            tooltip=["rule", "name", alt.Tooltip("start:Q", format=".1f"), alt.Tooltip("end:Q", format=".1f")],
        )
    )
