"""Memory of each rank of a strategy, on the scale of one device."""

import altair as alt
import pandas as pd

from shardlab.records.reports import TensorBytes
from shardlab.report.charts.helpers import chosen_workload, in_unit, text_tips
from shardlab.report.run_data import RunData

KINDS = ["weights", "master_weights", "gradients", "optimizer", "activations", "gathered"]
TITLE = "Memory per rank"
CAPTION = (
    "Peak memory of each kind of tensor on each rank, with one device (`single`) on top; all panels share one scale. "
    "The gray mark is the planned size (results/plan.md). Master weights are the optimizer's float32 copy of the "
    "weights, which DeepSpeed keeps."
)


def table(run_data: RunData) -> pd.DataFrame:
    """workload, rank (or single), kind, bytes, planned (bytes)."""
    rows = []
    for run in run_data.runs:
        train = run.train
        singles = [one.train.tensor_bytes for one in run_data.singles if one.train.workload == train.workload]
        for ranks in singles if train.strategy != "single" else []:
            rows += [row for rank in ranks or [] for row in _rows(train.workload, "single", rank, None)]
        for number, rank in enumerate(train.tensor_bytes or []):
            rows += _rows(train.workload, f"rank {number}", rank, run.plan.rank(number) if run.plan else None)
    return pd.DataFrame(rows, columns=["workload", "rank", "kind", "bytes", "planned"])


def _rows(workload: str, name: str, rank: TensorBytes, planned: TensorBytes | None) -> list[tuple[object, ...]]:
    expected = planned.largest if planned else {}
    return [(workload, name, kind, size, expected.get(kind)) for kind, size in rank.largest.items() if kind in KINDS]


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A panel for each kind, a bar for each rank."""
    table, unit = in_unit(table, "bytes", "planned")
    ranks = alt.Y("rank:N", title=None, sort=list(dict.fromkeys(table["rank"])))
    color = alt.Color("kind:N", legend=None, scale=alt.Scale(domain=KINDS, scheme="tableau10"))
    tips = ["workload", "rank", "kind", *text_tips("bytes", "planned")]
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(alt.X("bytes:Q", title=unit, axis=alt.Axis(tickCount=3)), ranks, color, tooltip=tips)
    )
    ticks = alt.Chart().mark_tick(thickness=3, size=16, color="grey").encode(alt.X("planned:Q"), ranks)
    layers = [bars, ticks] if table.planned.notna().any() else [bars]
    panels = alt.layer(*layers, data=table).properties(width=150, height=alt.Step(18))
    return chosen_workload(panels.facet(column=alt.Column("kind:N", title=None, sort=KINDS), spacing=8), table)
