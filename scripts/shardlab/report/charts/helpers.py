"""Helpers that charts share: marks colored by family of strategies, labels, units."""

from typing import Any

import altair as alt
import pandas as pd

from shardlab.report.families import FAMILIES
from shardlab.report.units import byte_unit, readable_bytes

WIDTH, HEIGHT, ROW = 460, 260, 18
LEGEND = alt.Legend(title=None, orient="bottom", columns=4, symbolLimit=0)
LONG = alt.Legend(title=None, orient="bottom", columns=2, symbolLimit=0)
"""For names of two or three words."""
MANY = 60
"""From this many strategies on bars are thinner."""
ANCHORS = {
    "label": ["right", "left", "top", "bottom", "top-right", "bottom-right", "top-left", "bottom-left"],
    "end-label": ["right"],
}
"""Style of a text mark: the sides of its point where Vega may place it (``charts.place_labels``)."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
"""Strokes of the strategies of a family, whose color is the same."""


def lines(table: pd.DataFrame, **channels: Any) -> alt.Chart:
    names = table.drop_duplicates("strategy")
    strokes = [DASHES[number % len(DASHES)] for number in names.groupby("family").cumcount()]
    dash = alt.StrokeDash("strategy:N", scale=alt.Scale(domain=[*names.strategy], range=strokes), legend=None)
    chart = alt.Chart(table, width=WIDTH, height=HEIGHT).mark_line(strokeWidth=2)
    return _by_family(table, chart, strokeDash=dash, **channels)


def points(table: pd.DataFrame, size: int = 90, **channels: Any) -> alt.Chart:
    """Points of each strategy, whose shapes are those of the families."""
    chart = alt.Chart(table, width=WIDTH, height=HEIGHT).mark_point(filled=True, size=size)
    scale = alt.Scale(domain=_families(table), range=[FAMILIES[name].shape for name in _families(table)])
    return _by_family(table, chart, shape=alt.Shape("family:N", scale=scale, legend=LEGEND), **channels)


def labels(table: pd.DataFrame, style: str = "label", **channels: Any) -> alt.Chart:
    """The names of the strategies, at points of the same channels; the first rows are placed first."""
    clip = style == "label"  # Vega makes room for marks that are not clipped, also for names that it hides
    text = alt.Chart(table, width=WIDTH, height=HEIGHT).mark_text(style=style, fontSize=11, clip=clip)
    return text.encode(text="strategy:N", **channels)


def bars(table: pd.DataFrame, **channels: Any) -> alt.Chart:
    """One bar per strategy, in the order of the configuration."""
    names = table.strategy.nunique()
    chart = alt.Chart(table, width=WIDTH, height=(ROW if names <= MANY else 3) * max(3, names)).mark_bar()
    return chart.encode(y=strategies(table), **channels)


def with_ticks(chart: alt.Chart, table: pd.DataFrame, column: str, **channels: Any) -> alt.Chart | alt.LayerChart:
    """The chart with a mark across the bar of each strategy that has a value in the column."""
    known = table.dropna(subset=[column]).drop_duplicates("strategy")
    if known.empty:  # Vega warns of an axis without values
        return chart
    marks = alt.Chart(known).mark_tick(thickness=3, size=16, color="grey")
    return chart + marks.encode(x=f"{column}:Q", y=strategies(known), **channels)


def strategies(table: pd.DataFrame) -> alt.Y:
    """The strategies from top to bottom."""
    return alt.Y("strategy:N", title=None, sort=list(dict.fromkeys(table.strategy)))


def chosen_workload(chart: Any, table: pd.DataFrame) -> Any:
    """Add a selector of the workload below the chart if there are several; initially the first one."""
    names = list(dict.fromkeys(table.workload))
    if len(names) < 2:
        return chart
    chosen = alt.param(name="workload", value=names[0], bind=alt.binding_select(options=names, name="workload "))
    return chart.transform_filter("datum.workload == workload").add_params(chosen)


def in_unit(table: pd.DataFrame, *columns: str) -> tuple[pd.DataFrame, str]:
    """The table with these columns of bytes in one unit, the unit, and columns NAME_text with readable sizes."""
    unit, size = byte_unit(float(table[[*columns]].max().max()))
    text = {f"{column}_text": table[column].map(readable_bytes, na_action="ignore") for column in columns}
    table = table.astype(dict.fromkeys(columns, float))  # also one without values, whose NaN would be no JSON
    return table.assign(**{column: table[column] / size for column in columns}, **text), unit


def text_tips(*columns: str) -> list[alt.Tooltip]:
    """Tooltips of columns that ``in_unit`` put into words."""
    return [alt.Tooltip(f"{column}_text:N", title=column) for column in columns]


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
    channels.setdefault("tooltip", [alt.Tooltip(str(name)) for name in table.columns])
    color = alt.Color("family:N", scale=scale, legend=LEGEND, sort=names)
    return chart.encode(color=color, opacity=opacity, **channels).add_params(selected, hovered)
