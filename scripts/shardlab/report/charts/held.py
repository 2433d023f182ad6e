"""Memory of each rank of a strategy by kind, compared with one device."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import chosen_workload
from shardlab.report.evidence import Evidence
from shardlab.report.expected import held
from shardlab.report.records import TensorBytes

KINDS = ["weights", "master_weights", "gradients", "optimizer", "activations", "gathered"]
TITLE = "Memory per rank"
CAPTION = (
    "Maximum of each kind that a rank held in a step (MiB), all to one scale, with one device (`single`) on top. Gray "
    "mark: theory, if weights, gradients and optimizer states that are sharded are divided evenly. Master weights "
    "are the optimizer's copy of the weights, which DeepSpeed keeps in float32."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """workload, rank (or single), kind, mib, theory (MiB)."""
    rows = []
    for run in evidence.runs:
        train = run.train
        singles = [one.train.tensor_bytes for one in evidence.singles if one.train.workload == train.workload]
        for ranks in singles if train.strategy != "single" else []:
            rows += [row for rank in ranks or [] for row in _rows(train.workload, "single", rank, {})]
        for number, rank in enumerate(train.tensor_bytes or []):
            rows += _rows(train.workload, f"rank {number}", rank, held(train))
    return pd.DataFrame(rows, columns=["workload", "rank", "kind", "mib", "theory"])


def _rows(workload: str, name: str, rank: TensorBytes, theory: dict[str, float]) -> list[tuple[object, ...]]:
    sizes = rank.largest.items()
    return [
        (workload, name, kind, size / 2**20, theory[kind] / 2**20 if kind in theory else None)
        for kind, size in sizes
        if kind in KINDS
    ]


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A panel per kind, a bar per rank."""
    ranks = alt.Y("rank:N", title=None, sort=list(dict.fromkeys(table["rank"])))
    color = alt.Color("kind:N", legend=None, scale=alt.Scale(domain=KINDS, scheme="tableau10"))
    tips = ["workload", "rank", "kind", alt.Tooltip("mib:Q", format=".3g"), alt.Tooltip("theory:Q", format=".3g")]
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(alt.X("mib:Q", title="MiB", axis=alt.Axis(tickCount=3)), ranks, color, tooltip=tips)
    )
    ticks = alt.Chart().mark_tick(thickness=3, size=16, color="grey").encode(alt.X("theory:Q"), ranks)
    panels = alt.layer(bars, ticks, data=table).properties(width=150, height=alt.Step(18))
    return chosen_workload(panels.facet(column=alt.Column("kind:N", title=None, sort=KINDS), spacing=8), table)
