"""Timeline of the workflow's jobs."""

import altair as alt
import pandas as pd

from shardlab.report.run_data import RunData

TITLE = "Workflow jobs"
CAPTION = (
    "The last run of every job whose output exists, by rule, in seconds since the first job started. Taken from "
    "Snakemake's metadata, so it covers earlier calls too."
)


def table(run_data: RunData) -> pd.DataFrame:
    """rule, name (its first output), start, end (seconds)."""
    return run_data.jobs


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
