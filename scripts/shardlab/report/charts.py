"""The charts of the report: their tables, and how these are drawn.

To add a chart, add it to PER_WORKLOAD or PER_STRATEGY. What its table can be made of is in ``report/run_data.py``.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from shardlab.records.reports import Kind, TensorBytes
from shardlab.report.run_data import FAMILIES, RunData
from shardlab.report.units import byte_unit, readable_bytes
from shardlab.settings.types import Run

# Altair refuses more than 5,000 rows to protect notebooks; run_data.MARKS keeps the page small.
alt.data_transformers.disable_max_rows()

PAGES = 40
"""Strategies with charts of their own; more would make the page slow."""
WIDTH, HEIGHT, ROW = 460, 260, 18
MANY = 60
"""From this many strategies on bars are thinner."""
LAYERS, LAYERS_WIDTH = 4, 560
"""Maximum number of layers whose experts are shown, evenly spaced; width of all of them together, in pixels."""
LEGEND = alt.Legend(title=None, orient="bottom", columns=alt.expr("max(2, floor(width / 110))"), symbolLimit=0)
LONG = alt.Legend(title=None, orient="bottom", columns=alt.expr("max(1, floor(width / 200))"), symbolLimit=0)
"""For names of two or three words."""
KINDS = list(get_args(Kind))
COLORS = ["#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#f0e442", "#cc79a7"]
"""Of the kinds, to be told apart by everybody: Okabe and Ito, Color Universal Design, 2008."""
ANCHORS = {
    "label": ["right", "left", "top", "bottom", "top-right", "bottom-right", "top-left", "bottom-left"],
    "end-label": ["right"],
}
"""Style of a text mark: the sides of its point where Vega may place it."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
"""Strokes of the strategies of a family, whose color is the same."""


@dataclass(frozen=True)
class Chart:
    """A chart of the report."""

    title: str
    caption: str
    """The axes and how to read the chart, for the page and for screen readers."""
    table: Callable[[RunData], pd.DataFrame]
    """Returns the data, one row per mark; empty if the runs have none."""
    draw: Callable[[pd.DataFrame], alt.TopLevelMixin]


Drawn = dict[str, tuple[pd.DataFrame, dict[str, Any]]]
"""Name of a chart, ``loss.llama2``: its table and its Vega-Lite specification."""


def draw(run_data: RunData, workloads: Iterable[str]) -> Drawn:
    """Draw all charts for which the runs have data."""
    scopes = [(f".{name}", run_data.for_workload(name), PER_WORKLOAD) for name in workloads]
    scopes += [(f".{name}", run_data.under(name), PER_STRATEGY) for name in strategies(run_data)]
    drawn: Drawn = {}
    for scope, part, charts in scopes:
        for name, chart in charts.items():
            table = chart.table(part)
            if len(table):
                specification = chart.draw(table).properties(description=chart.caption).to_dict()
                drawn[f"{name}{scope}"] = table, specification
    return drawn


def strategies(run_data: RunData) -> list[str]:
    """Return the first strategies that have runs, in the order of the configuration: those that get charts."""
    there = {run.train.strategy for run in run_data.runs}
    return [name for name in dict.fromkeys(run_data.table.strategy) if name in there][:PAGES]


def svg(chart: dict[str, Any]) -> str:
    """A Vega-Lite specification as a picture, whose text stays text."""
    vega = vl_convert.vegalite_to_vega(chart)
    _place_labels(vega["marks"])
    return str(vl_convert.vega_to_svg(vega))


def _place_labels(marks: list[dict[str, Any]]) -> None:
    """Have Vega place the labels among ``marks`` where they cover nothing, and hide those without room.

    Vega-Lite cannot say that. The page does the same (``placeLabels`` in page.js).
    """
    for mark in marks:
        for style in ANCHORS.keys() & set(mark.get("style", ())):
            size = {"signal": "[width, height]"}
            mark["transform"] = [{"type": "label", "size": size, "anchor": ANCHORS[style], "offset": [7]}]
        _place_labels(mark.get("marks", []))


def _loss_table(run_data: RunData) -> pd.DataFrame:
    return run_data.steps[["strategy", "family", "step", "loss"]].dropna()


def _draw_loss(table: pd.DataFrame) -> alt.TopLevelMixin:
    names = table.drop_duplicates("strategy")
    strokes = [DASHES[number % len(DASHES)] for number in names.groupby("family").cumcount()]
    dash = alt.StrokeDash("strategy:N", scale=alt.Scale(domain=[*names.strategy], range=strokes), legend=None)
    y = alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False))
    lines = alt.Chart(table, width=WIDTH, height=HEIGHT).mark_line(strokeWidth=2)
    tips = ["strategy", "family", "step", "loss"]
    return _by_family(table, lines, x=alt.X("step:Q", title="step"), y=y, strokeDash=dash, tooltip=tips)


def _difference_table(run_data: RunData) -> pd.DataFrame:
    """strategy, family, step, difference (relative), noise_floor (the farthest of them, the same in every row)."""
    steps = run_data.steps[run_data.steps.strategy != "single"].dropna(subset=["loss", "single"])
    difference = ((steps.loss - steps.single).abs() / steps.single.abs()).astype(float)
    noise_floor = run_data.table.noise_floor.max()
    floor = None if pd.isna(noise_floor) else float(noise_floor)
    columns = ["strategy", "family", "step", "difference", "noise_floor"]
    return steps.assign(difference=difference, noise_floor=floor)[columns]


def _draw_difference(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A point per strategy and step, the name at its last step, and the twins' end."""
    # A logarithmic axis has no 0: a decade below the smallest difference stands for it.
    there = table.difference[table.difference > 0]
    bottom = 10.0 ** (math.floor(math.log10(there.min())) - 1) if len(there) else 1e-17
    table = table.assign(
        difference=table.difference.clip(lower=bottom), noise_floor=table.noise_floor.clip(lower=bottom)
    )
    scale = alt.Scale(type="log", domainMin=bottom, nice=False)
    y = alt.Y("difference:Q", title="relative difference", scale=scale, axis=alt.Axis(format=".0e", tickCount=6))
    last = table.groupby("strategy").tail(1).sort_values("difference", ascending=False)
    # Room for the names of the strategies on the right, those of the farthest first.
    x = alt.X("step:Q", title="step", scale=alt.Scale(domain=[0, 1.2 * max(1, last.step.max())], nice=False))
    tips = ["strategy", "family", "step", alt.Tooltip("difference:Q", format=".1e")]
    curves = _points(table, size=12, x=x, y=y, tooltip=tips) + _labels(last, "end-label", x=x, y=y)
    if table.noise_floor.isna().all():
        return curves
    rule = alt.Chart(table.head(1)).mark_rule(color="grey", strokeWidth=3, opacity=0.6)
    tip = alt.Tooltip("noise_floor:Q", title="farthest twin", format=".1e")
    return curves + rule.encode(y="noise_floor:Q", tooltip=[tip])


def _trade_table(run_data: RunData) -> pd.DataFrame:
    """strategy, family, ranks, samples_per_second, tensor_bytes (of the fullest rank); memory and time: as multiples of
    those of the strategy ``base``, which is ``single`` or, without it, the first one.
    """
    rows = [
        (train.strategy, run_data.families[train.strategy], train.world_size, train.samples_per_second, train.held())
        for train in (run.train for run in run_data.runs)
    ]
    columns = ["strategy", "family", "ranks", "samples_per_second", "tensor_bytes"]
    known = pd.DataFrame(rows, columns=columns).dropna()
    if known.empty:
        return known
    base = known.iloc[int(known.strategy.eq("single").argmax())]
    return known.assign(
        memory=known.tensor_bytes / base.tensor_bytes,
        time=base.samples_per_second / known.samples_per_second,
        base=base.strategy,
    )


def _draw_trade(table: pd.DataFrame) -> alt.TopLevelMixin:
    """One point per strategy, with its name where there is room: first those with the least memory for their time."""
    table = table.assign(held=table.tensor_bytes.map(readable_bytes)).sort_values(["memory", "time"])
    beaten = table.time.cummin().shift().le(table.time)
    table = pd.concat([table[~beaten], table[beaten]])
    of = table.base.iloc[0]
    scale = alt.Scale(type="log", base=2, nice=False)
    percent = alt.Axis(labelExpr="format(datum.value, '.3~%')", labelOverlap=True, tickCount=5)
    times = alt.Axis(labelExpr="format(datum.value, '.3~g') + '\u00d7'", labelOverlap=True, tickCount=5)
    x = alt.X("memory:Q", title=f"memory (% of {of})", scale=scale, axis=percent)
    y = alt.Y("time:Q", title=f"time (\u00d7 {of})", scale=scale, axis=times)
    tips = [
        "strategy",
        "family",
        "ranks",
        alt.Tooltip("held:N", title="memory per rank"),
        alt.Tooltip("memory:Q", title=f"of {of}'s", format=".3~%"),
        alt.Tooltip("time:Q", title=f"time per step / {of}'s", format=".3~g"),
        alt.Tooltip("samples_per_second:Q", title="samples/s", format=".3s"),
    ]
    return _points(table, tooltip=tips, x=x, y=y) + _labels(table, x=x, y=y)


def _memory_table(run_data: RunData) -> pd.DataFrame:
    """strategy, kind, bytes, planned (of all kinds, the same in every row of a strategy)."""
    rows = []
    for run in run_data.runs:
        if run.train.tensor_bytes is None:
            continue
        fullest = max(run.train.tensor_bytes, key=lambda rank: rank.peak)
        planned = run.plan.predicted_memory_bytes if run.plan else None
        rows += [(run.train.strategy, kind, fullest.at_peak[kind], planned) for kind in KINDS]
    return pd.DataFrame(rows, columns=["strategy", "kind", "bytes", "planned"])


def _draw_memory(table: pd.DataFrame) -> alt.TopLevelMixin:
    table, unit = _in_unit(table)
    named = table[table.kind != "other"].groupby("strategy").bytes.sum().max()
    # A bar that is whole ends before the edge.
    longest = min(4 * named, 1.02 * table.groupby("strategy").bytes.sum().max())
    return _bars(
        table.assign(order=table.kind.map(KINDS.index)),
        alt.X("bytes:Q", title=unit, scale=alt.Scale(domainMax=float(longest), clamp=True)),
        tips=["kind", *SIZES],
        color=alt.Color("kind:N", sort=KINDS, scale=alt.Scale(domain=KINDS, range=COLORS), legend=LEGEND),
        order=alt.Order("order:Q"),
    )


def _traffic_table(run_data: RunData) -> pd.DataFrame:
    """strategy, collective, bytes (counted), planned (sum, the same in every row of a strategy)."""
    rows = [
        (
            run.train.strategy,
            f"{entry.collective} ({entry.axis})",
            entry.bytes,
            run.plan.predicted_bytes_per_step if run.plan else None,
        )
        for run in run_data.runs
        for entry in run.train.traffic or []
    ]
    return pd.DataFrame(rows, columns=["strategy", "collective", "bytes", "planned"])


def _draw_traffic(table: pd.DataFrame) -> alt.TopLevelMixin:
    table, unit = _in_unit(table)
    color = alt.Color("collective:N", scale=alt.Scale(scheme="tableau20"), legend=LONG)
    return _bars(table, alt.X("bytes:Q", title=f"{unit} per step and rank"), tips=["collective", *SIZES], color=color)


def _bubble_table(run_data: RunData) -> pd.DataFrame:
    """strategy, idle, planned (fractions)."""
    rows = [
        (train.strategy, sum(train.idle) / len(train.idle), Run.model_validate(train.settings).pipeline_bubble)
        for train in (run.train for run in run_data.runs)
        if train.idle
    ]
    return pd.DataFrame(rows, columns=["strategy", "idle", "planned"])


def _draw_bubble(table: pd.DataFrame) -> alt.TopLevelMixin:
    tips = [alt.Tooltip(f"{column}:Q", format=".1%") for column in ("idle", "planned")]
    x = alt.X("idle:Q", title="idle", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    return _bars(table, x, tips=tips)


def _experts_table(run_data: RunData) -> pd.DataFrame:
    """strategy, layer, expert, tokens, load (relative to the mean), dropped (the same in all rows of a strategy)."""
    rows = []
    for run in run_data.runs:
        steps = run.steps.dropna(subset=["expert_load"])
        if steps.empty:
            continue
        tokens = np.array(steps.expert_load.tolist()).sum(0)
        dropped = int(steps.dropped_tokens.sum())
        for layer in sorted({*np.linspace(0, len(tokens) - 1, LAYERS).round().astype(int).tolist()}):
            mean = tokens[layer].mean()
            for expert, count in enumerate(tokens[layer].tolist()):
                rows.append((run.train.strategy, f"layer {layer}", expert, count, count / mean, dropped))
    return pd.DataFrame(rows, columns=["strategy", "layer", "expert", "tokens", "load", "dropped"])


def _draw_experts(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A panel per layer, a row per strategy."""
    lost = table.dropped.map(lambda count: f" ({count:,} dropped)" if count else "")
    table = table.assign(row=table.strategy + lost)
    layers = list(dict.fromkeys(table.layer))
    every = -(-table.expert.nunique() // 16)
    axis = alt.Axis(labelAngle=0, labelExpr=f"datum.value % {every} == 0 ? datum.label : ''", ticks=False)
    color = alt.Color(
        "load:Q",
        title="load",
        scale=alt.Scale(scheme="blueorange", domain=[0, 1, max(2.0, float(table.load.max()))]),
        legend=alt.Legend(orient="bottom", tickCount=5, format=".2~f"),
    )
    tips = ["strategy", "layer", "expert", alt.Tooltip("tokens:Q", format=","), alt.Tooltip("load:Q", format=".3f")]
    cells = alt.Chart(table, width=LAYERS_WIDTH / len(layers), height=ROW * max(2, table.strategy.nunique()))
    cells = cells.mark_rect().encode(alt.X("expert:O", axis=axis), _rows(table, "row"), color, tooltip=tips)
    return cells.facet(column=alt.Column("layer:N", title=None, sort=layers), spacing=8)


def _ranks_table(run_data: RunData) -> pd.DataFrame:
    """workload, rank (or single), kind, bytes, planned (bytes)."""
    rows = []
    for run in run_data.runs:
        train, plan = run.train, run.plan
        singles = [one.train.tensor_bytes or [] for one in run_data.singles if one.train.workload == train.workload]
        ranks: list[tuple[str, TensorBytes, TensorBytes | None]] = [
            ("single", rank, None) for held in singles for rank in held if train.strategy != "single"
        ]
        for number, rank in enumerate(train.tensor_bytes or []):
            ranks.append((f"rank {number}", rank, plan.rank(number) if plan else None))
        for name, held, planned in ranks:
            expected: dict[Any, int] = planned.largest if planned else {}
            sizes = [(kind, size, expected.get(kind)) for kind, size in held.largest.items() if kind != "other"]
            rows += [(train.workload, name, *each) for each in sizes]
    return pd.DataFrame(rows, columns=["workload", "rank", "kind", "bytes", "planned"])


def _draw_ranks(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A panel for each kind, a bar for each rank."""
    table, unit = _in_unit(table)
    ranks = _rows(table, "rank")
    color = alt.Color("kind:N", legend=None, scale=alt.Scale(domain=KINDS[:-1], range=COLORS))
    x = alt.X("bytes:Q", title=unit, axis=alt.Axis(tickCount=3))
    bars = alt.Chart().mark_bar().encode(x, ranks, color, tooltip=["workload", "rank", "kind", *SIZES])
    ticks = alt.Chart().mark_tick(thickness=3, size=16, color="grey").encode(alt.X("planned:Q"), ranks)
    layers = [bars, ticks] if table.planned.notna().any() else [bars]
    panels = alt.layer(*layers, data=table).properties(width=150, height=alt.Step(ROW))
    return _of_workload(panels.facet(column=alt.Column("kind:N", title=None, sort=KINDS), spacing=8), table)


def _schedule_table(run_data: RunData) -> pd.DataFrame:
    """workload, place, what, piece (the micro-batch's number), start, end (ms)."""
    rows = [
        (run.train.workload, f"{number}", span.name, span.piece, span.start * 1e3, span.end * 1e3)
        for run in run_data.runs
        if run.timeline
        for number, spans in enumerate(run.timeline.computed)
        for span in spans[: run_data.events]
    ]
    return pd.DataFrame(rows, columns=["workload", "place", "what", "piece", "start", "end"])


def _draw_schedule(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A row per rank, a block per micro-batch and pass."""
    place = _rows(table, "place", title="rank")
    times = [alt.Tooltip(f"{column}:Q", format=".2f") for column in ("start", "end")]
    color = alt.Color("what:N", legend=LEGEND, sort=list(dict.fromkeys(table.what)))
    blocks = alt.Chart().mark_bar(height=22, stroke="white", strokeWidth=1)
    blocks = blocks.encode(alt.X("start:Q", title="milliseconds"), alt.X2("end:Q"), place, color)
    numbers = alt.Chart().mark_text(fontSize=9, color="white")
    numbers = numbers.transform_calculate(middle="(datum.start + datum.end) / 2")
    numbers = numbers.encode(alt.X("middle:Q"), place, alt.Text("piece:N"))
    layers = alt.layer(blocks.encode(tooltip=["place", "what", "piece", *times]), numbers, data=table)
    return _of_workload(layers.properties(width=520, height=30 * max(2, table.place.nunique())), table)


PER_WORKLOAD = {
    "loss": Chart(
        "Training loss",
        "Loss at each training step, one curve per strategy. Curves of equal strategies coincide. Hover over a curve "
        "to highlight its strategy; click a family in the legend to show it alone, shift-click to add another.",
        _loss_table,
        _draw_loss,
    ),
    "difference": Chart(
        "Difference from one device",
        "Relative difference between the loss of each step and that of `single`, on a logarithmic scale. Points at the "
        "bottom are bitwise equal. The gray line marks the final difference of the farthest twin, a copy of `single` "
        "that differs only by rounding.",
        _difference_table,
        _draw_difference,
    ),
    "speed_and_memory": Chart(
        "Time per step and memory",
        "Time per step against the peak memory of all tensors on the rank that held the most, both relative to "
        "single's and on logarithmic scales: lower left is better. Names that would overlap are left out; hover over a "
        "mark for its name and figures.",
        _trade_table,
        _draw_trade,
    ),
    "memory": Chart(
        "Memory by kind, measured and planned",
        "Tensors at peak memory by kind, on the rank that held the most. gathered: full weights or activations "
        "assembled from the shards of other ranks. other: includes gradients of activations and DeepSpeed's buffers; a "
        "bar that reaches the right edge is cut off there, and the table has its full size. Gray marks: the plan's "
        "total (results/plan.md). Neither includes the device context, communicator buffers, or fragmentation "
        "(hardware.unplanned_gib).",
        _memory_table,
        _draw_memory,
    ),
    "traffic": Chart(
        "Bytes sent",
        "Bytes sent per step and rank (mean over the ranks), counted by collective and mesh axis. The gray mark is the "
        "total of the plan (results/plan.md).",
        _traffic_table,
        _draw_traffic,
    ),
    "pipeline_bubble": Chart(
        "Pipeline bubble",
        "Fraction of the forward and backward passes that a rank sits idle (mean over the ranks). The gray mark is the "
        "bubble if all stages take equally long: (p - 1) / (m + p - 1) for m micro-batches on p ranks.",
        _bubble_table,
        _draw_bubble,
    ),
    "expert_load": Chart(
        "Load per expert",
        "Tokens of each expert over the whole training, relative to the mean of its layer (1: balanced): a row per "
        "strategy, a panel per layer (four of them if there are more). Equal strategies have equal rows. Dropped: "
        "choices of experts, over all layers and steps, that no expert computed.",
        _experts_table,
        _draw_experts,
    ),
}
PER_STRATEGY = {
    "memory_per_rank": Chart(
        "Memory per rank",
        "Peak memory of each kind of tensor on each rank, with one device (`single`) on top; all panels share one "
        "scale. The gray mark is the planned size (results/plan.md). Master weights are the optimizer's float32 copy "
        "of the weights, which DeepSpeed keeps.",
        _ranks_table,
        _draw_ranks,
    ),
    "schedule": Chart(
        "Pipeline schedule",
        "Micro-batches computed on each rank (for `mp`, each device) in the last step, forward and backward, in "
        "milliseconds. Gaps are the bubble.",
        _schedule_table,
        _draw_schedule,
    ),
}
CHARTS = PER_WORKLOAD | PER_STRATEGY
SIZES = [alt.Tooltip(f"{column}_text:N", title=column) for column in ("bytes", "planned")]
"""Tooltips of what ``_in_unit`` put into words."""


def _points(table: pd.DataFrame, size: int = 90, **channels: Any) -> alt.Chart:
    """Points of each strategy, whose shapes are those of the families."""
    chart = alt.Chart(table, width=WIDTH, height=HEIGHT).mark_point(filled=True, size=size)
    names = _families(table)
    scale = alt.Scale(domain=names, range=[FAMILIES[name].shape for name in names])
    return _by_family(table, chart, shape=alt.Shape("family:N", scale=scale, legend=LEGEND), **channels)


def _labels(table: pd.DataFrame, style: str = "label", **channels: Any) -> alt.Chart:
    """The names of the strategies, at points of the same channels; the first rows are placed first."""
    clip = style == "label"  # Vega makes room for marks that are not clipped, also for names that it hides
    text = alt.Chart(table, width=WIDTH, height=HEIGHT).mark_text(style=style, fontSize=11, clip=clip)
    return text.encode(text="strategy:N", **channels)


def _bars(table: pd.DataFrame, x: alt.X, tips: list[Any], **channels: Any) -> alt.TopLevelMixin:
    """One bar per strategy, with a mark across it at what was planned; ``tips``: the last one is of that."""
    names = table.strategy.nunique()
    chart = alt.Chart(table, width=WIDTH, height=(ROW if names <= MANY else 3) * max(3, names)).mark_bar()
    bars = chart.encode(x, _rows(table, "strategy"), tooltip=["strategy", *tips], **channels)
    known = table.dropna(subset=["planned"]).drop_duplicates("strategy")
    if known.empty:  # Vega warns of an axis without values
        return bars
    marks = alt.Chart(known).mark_tick(thickness=3, size=16, color="grey")
    return bars + marks.encode(alt.X("planned:Q"), _rows(known, "strategy"), tooltip=["strategy", tips[-1]])


def _rows(table: pd.DataFrame, column: str, title: str | None = None) -> alt.Y:
    """The names in a column from top to bottom, in their order in the table."""
    return alt.Y(f"{column}:N", title=title, sort=list(dict.fromkeys(table[column])))


def _of_workload(chart: Any, table: pd.DataFrame) -> Any:
    """Add a selector of the workload below the chart if there are several; initially the first one."""
    names = list(dict.fromkeys(table.workload))
    if len(names) < 2:
        return chart
    chosen = alt.param(name="workload", value=names[0], bind=alt.binding_select(options=names, name="workload "))
    return chart.transform_filter("datum.workload == workload").add_params(chosen)


def _in_unit(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The table with bytes and planned bytes in one unit, the unit, and the columns of SIZES."""
    columns = ["bytes", "planned"]
    unit, size = byte_unit(float(table[columns].max().max()))
    text = {f"{column}_text": table[column].map(readable_bytes, na_action="ignore") for column in columns}
    table = table.astype(dict.fromkeys(columns, float))  # also one without values, whose NaN would be no JSON
    return table.assign(**{column: table[column] / size for column in columns}, **text), unit


def _families(table: pd.DataFrame) -> list[str]:
    """The families in a table, in the order of legends."""
    return [name for name in FAMILIES if name in set(table.family)]


def _by_family(table: pd.DataFrame, chart: alt.Chart, **channels: Any) -> alt.Chart:
    """Colors by family. The legend selects families, and hovering highlights one strategy."""
    names = _families(table)
    scale = alt.Scale(domain=names, range=[FAMILIES[name].color for name in names])
    selected = alt.selection_point(fields=["family"], bind="legend")
    hovered = alt.selection_point(fields=["strategy"], on="pointerover", clear="pointerout")
    opacity = alt.when(selected & hovered).then(alt.value(0.9)).otherwise(alt.value(0.07))
    color = alt.Color("family:N", scale=scale, legend=LEGEND, sort=names)
    return chart.encode(color=color, opacity=opacity, **channels).add_params(selected, hovered)
