"""Pipeline schedule: the times at which each rank computed each micro-batch."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import LEGEND, chosen_workload
from shardlab.report.run_data import RunData

TITLE = "Pipeline schedule"
CAPTION = (
    "Micro-batches computed on each rank (for `mp`, each device) in the last step, forward and backward, in "
    "milliseconds. Gaps are the bubble."
)


def table(run_data: RunData) -> pd.DataFrame:
    """workload, place, what, piece (the micro-batch's number), start, end (ms)."""
    rows = [
        (run.train.workload, f"{number}", span.name, span.piece, span.start * 1e3, span.end * 1e3)
        for run in run_data.runs
        if run.timeline
        for number, spans in enumerate(run.timeline.computed)
        for span in spans[: run_data.events]
    ]
    return pd.DataFrame(rows, columns=["workload", "place", "what", "piece", "start", "end"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A row per rank, a block per micro-batch and pass."""
    names = list(dict.fromkeys(table.what))
    place = alt.Y("place:N", title="rank", sort=list(dict.fromkeys(table.place)))
    blocks = alt.Chart().mark_bar(height=22, stroke="white", strokeWidth=1)
    blocks = blocks.encode(
        alt.X("start:Q", title="milliseconds"),
        alt.X2("end:Q"),
        place,
        alt.Color("what:N", legend=LEGEND, sort=names),
        tooltip=["place", "what", "piece", alt.Tooltip("start:Q", format=".2f"), alt.Tooltip("end:Q", format=".2f")],
    )
    numbers = (
        alt.Chart().mark_text(fontSize=9, color="white").transform_calculate(middle="(datum.start + datum.end) / 2")
    )
    numbers = numbers.encode(alt.X("middle:Q"), place, alt.Text("piece:N"))
    size = {"width": 520, "height": 30 * max(2, table.place.nunique())}
    return chosen_workload(alt.layer(blocks, numbers, data=table).properties(**size), table)
