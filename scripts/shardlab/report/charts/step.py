"""Timeline of one step: the phases and collectives of each rank."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import LONG, chosen_workload
from shardlab.report.run_data import RunData
from shardlab.report.units import readable_bytes

TITLE = "One step"
CAPTION = (
    "Timeline of one step on each rank, in milliseconds: forward pass, backward pass, and update as bands; a point "
    "where the host launched each collective, sized by its bytes. Tracing slows this step down, so compare the order "
    "of events rather than their times."
)
PHASES = ["forward", "backward", "losses", "update"]


def table(run_data: RunData) -> pd.DataFrame:
    """workload, rank, phase or collective (with its mesh axis), start, end (ms), bytes sent."""
    rows: list[tuple[object, ...]] = []
    for run in run_data.runs:
        drawn = run.timeline
        if drawn is None:
            continue
        for number, (phases, sent) in enumerate(zip(drawn.phases, drawn.sent, strict=True)):
            key = (run.train.workload, f"rank {number}")
            rows += [(*key, span.name, None, span.start * 1e3, span.end * 1e3, None) for span in phases]
            rows += [
                (*key, None, f"{each.collective} ({each.axis})", each.start * 1e3, each.end * 1e3, each.bytes)
                for each in sent[: run_data.events]
            ]
    return pd.DataFrame(rows, columns=["workload", "rank", "phase", "collective", "start", "end", "bytes"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One row per rank."""
    table = table.assign(sent=table.bytes.map(readable_bytes, na_action="ignore"))
    order = list(dict.fromkeys(table["rank"]))
    rank = alt.Y("rank:N", title=None, sort=order)
    start = alt.X("start:Q", title="milliseconds")
    tips = [alt.Tooltip("start:Q", format=".1f"), alt.Tooltip("end:Q", format=".1f")]
    phases = alt.Chart().mark_bar(opacity=0.35, height=26).transform_filter("isValid(datum.phase)")
    colors = alt.Scale(domain=PHASES, range=["#4c78a8", "#f58518", "#888888", "#54a24b"])
    phases = phases.encode(
        start, alt.X2("end:Q"), rank, alt.Color("phase:N", scale=colors, legend=LONG), tooltip=["rank", "phase", *tips]
    )
    sent = alt.Chart().mark_point(filled=True, opacity=0.9).transform_filter("isValid(datum.collective)")
    sent = sent.encode(
        start,
        rank,
        alt.Size("bytes:Q", scale=alt.Scale(range=[30, 400]), legend=None),
        alt.Color("collective:N", scale=alt.Scale(scheme="dark2"), legend=LONG),
        tooltip=["rank", "collective", "sent:N", *tips],
    )
    size = {"width": 520, "height": 34 * max(2, len(order))}
    # A layer without points has no extent, about which Vega warns.
    layers = (
        alt.layer(*[phases, sent][: 2 if table.collective.notna().any() else 1], data=table)
        .resolve_scale(color="independent")
        .properties(**size)
    )
    return chosen_workload(layers, table)
