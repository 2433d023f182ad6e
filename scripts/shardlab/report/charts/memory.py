"""Composition of a rank's memory."""

from typing import get_args

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import LEGEND, bars
from shardlab.report.evidence import Evidence
from shardlab.report.records import Kind

KINDS = list(get_args(Kind))
TITLE = "Memory by kind"
CAPTION = (
    "Tensors of the fullest rank at its peak, by kind (MiB). gathered: whole weights or activations whose parts came "
    "from other ranks; other: including gradients of activations, "
    "and DeepSpeed's buffers, which may exceed the chart; the table has all."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """strategy, kind, mib."""
    rows = []
    for run in evidence.runs:
        if run.train.tensor_bytes is None:
            continue
        fullest = max(run.train.tensor_bytes, key=lambda rank: rank.peak)
        rows += [(run.train.strategy, kind, fullest.at_peak[kind] / 2**20) for kind in KINDS]
    return pd.DataFrame(rows, columns=["strategy", "kind", "mib"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One stacked bar per strategy."""
    order = table.assign(order=table.kind.map(KINDS.index))
    named = table[table.kind != "other"].groupby("strategy").mib.sum().max()
    longest = min(1.5 * named, table.groupby("strategy").mib.sum().max())
    return bars(
        order,
        x=alt.X("mib:Q", title="MiB", scale=alt.Scale(domainMax=float(longest), clamp=True)),
        color=alt.Color("kind:N", sort=KINDS, scale=alt.Scale(domain=KINDS, scheme="tableau10"), legend=LEGEND),
        order=alt.Order("order:Q"),
        tooltip=["strategy", "kind", alt.Tooltip("mib:Q", format=".3g")],
    )
