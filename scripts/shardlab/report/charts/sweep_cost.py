"""Overhead of Snakemake for a sweep."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import HEIGHT, WIDTH
from shardlab.report.run_data import RunData

TITLE = "Workflow overhead of a sweep"
CAPTION = (
    "Seconds over the number of runs, on logarithmic axes: a dry run, a dry run of a bare Snakefile with the same "
    "number of jobs and files, parsing the Snakefile in one job, resolving one run, and the summary of all runs."
)
LINES = {
    "dry run s": "dry run",
    "bare s": "bare Snakefile",
    "one job reads s": "parse in one job",
    "resolve one s": "resolve one run",
    "summarize s": "summarize",
}


def table(run_data: RunData) -> pd.DataFrame:
    """Columns as benchmarks/sweeps.py writes them: runs, jobs, and seconds for each line."""
    return run_data.study("benchmarks/sweeps.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A line per quantity."""
    long = table.melt(["runs", "jobs"], [*LINES], "what", "seconds")
    long["what"] = long.what.map(LINES)
    log = alt.Scale(type="log")
    color = alt.Color("what:N", title=None, sort=[*LINES.values()])
    lines = alt.Chart(long, width=WIDTH, height=HEIGHT).mark_line(point=True)
    return lines.encode(alt.X("runs:Q", scale=log), alt.Y("seconds:Q", scale=log), color, tooltip=[*long.columns])
