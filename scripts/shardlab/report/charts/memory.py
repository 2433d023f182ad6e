"""Composition of a rank's memory, and what was planned."""

from typing import get_args

import altair as alt
import pandas as pd

from shardlab.records.reports import Kind
from shardlab.report.charts.helpers import LEGEND, bars, in_unit, text_tips, with_ticks
from shardlab.report.run_data import RunData

KINDS = list(get_args(Kind))
TITLE = "Memory by kind, measured and planned"
CAPTION = (
    "Tensors at peak memory by kind, on the rank that held the most. gathered: full weights or activations assembled "
    "from the shards of other ranks. other: includes gradients of activations and DeepSpeed's buffers; a bar that "
    "reaches the right edge is cut off there, and the table has its full size. Gray marks: the plan's total "
    "(results/plan.md). Neither includes the device context, communicator buffers, or fragmentation "
    "(hardware.unplanned_gib)."
)


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, kind, bytes, planned (of all kinds, the same in every row of a strategy)."""
    rows = []
    for run in run_data.runs:
        if run.train.tensor_bytes is None:
            continue
        fullest = max(run.train.tensor_bytes, key=lambda rank: rank.peak)
        planned = run.plan.predicted_memory_bytes if run.plan else None
        rows += [(run.train.strategy, kind, fullest.at_peak[kind], planned) for kind in KINDS]
    return pd.DataFrame(rows, columns=["strategy", "kind", "bytes", "planned"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One stacked bar per strategy, with a mark for what was planned."""
    table, unit = in_unit(table, "bytes", "planned")
    order = table.assign(order=table.kind.map(KINDS.index))
    named = table[table.kind != "other"].groupby("strategy").bytes.sum().max()
    longest = min(1.5 * named, table.groupby("strategy").bytes.sum().max())
    shown = ["strategy", "kind", *text_tips("bytes", "planned")]
    measured = bars(
        order,
        x=alt.X("bytes:Q", title=unit, scale=alt.Scale(domainMax=float(longest), clamp=True)),
        color=alt.Color("kind:N", sort=KINDS, scale=alt.Scale(domain=KINDS, scheme="tableau10"), legend=LEGEND),
        order=alt.Order("order:Q"),
        tooltip=shown,
    )
    return with_ticks(measured, table, "planned", tooltip=["strategy", *text_tips("planned")])
