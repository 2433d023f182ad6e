"""Helpers of the charts: marks of strategies, selected through the legend. Not a chart itself."""

from typing import Any

import altair as alt
import pandas as pd

WIDTH, HEIGHT, ROW = 460, 260, 18
LEGEND = alt.Legend(title=None, orient="bottom", columns=4, symbolLimit=0)
LONG = alt.Legend(title=None, orient="bottom", columns=2, symbolLimit=0)
"""Legend for names of two or three words."""
NAMED = 60
"""Number of strategies above which a legend would be larger than its chart."""


def lines(table: pd.DataFrame, **channels: Any) -> alt.Chart:
    """One line per strategy; the legend selects which are shown."""
    return _chosen(table, alt.Chart(table, width=WIDTH, height=HEIGHT).mark_line(strokeWidth=1.5), channels)


def points(table: pd.DataFrame, size: int = 90, **channels: Any) -> alt.Chart:
    """Points of each strategy; the legend selects which are shown."""
    return _chosen(table, alt.Chart(table, width=WIDTH, height=HEIGHT).mark_point(filled=True, size=size), channels)


def bars(table: pd.DataFrame, **channels: Any) -> alt.Chart:
    """One bar per strategy, in the order of the configuration."""
    names = table.strategy.nunique()
    chart = alt.Chart(table, width=WIDTH, height=(ROW if names <= NAMED else 3) * max(3, names)).mark_bar()
    return chart.encode(y=strategies(table), **channels)


def ticks(table: pd.DataFrame, **channels: Any) -> alt.Chart:
    """A mark across the bar of each strategy that has a theoretical value."""
    chart = alt.Chart(table).mark_tick(thickness=3, size=16, color="grey")
    return chart.encode(y=strategies(table), **channels)


def strategies(table: pd.DataFrame) -> alt.Y:
    """The strategies from top to bottom."""
    return alt.Y("strategy:N", title=None, sort=list(dict.fromkeys(table.strategy)))


def over_ranks(table: pd.DataFrame) -> alt.X:
    """The number of ranks, on a base-2 logarithmic axis."""
    values = sorted(table.ranks.unique().tolist())
    return alt.X("ranks:Q", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=values))


def chosen_workload(chart: Any, table: pd.DataFrame) -> Any:
    """Add a selector of the workload below the chart if there are several; initially the first one."""
    names = list(dict.fromkeys(table.workload))
    if len(names) < 2:
        return chart
    chosen = alt.param(name="workload", value=names[0], bind=alt.binding_select(options=names, name="workload "))
    return chart.transform_filter("datum.workload == workload").add_params(chosen)


def _chosen(table: pd.DataFrame, chart: alt.Chart, channels: dict[str, Any]) -> alt.Chart:
    names = list(dict.fromkeys(table.strategy))
    scale = alt.Scale(domain=names, scheme="category20" if len(names) > 10 else "category10")
    legend = LEGEND if len(names) <= NAMED else None
    color = alt.Color("strategy:N", scale=scale, legend=legend, sort=names)
    chart = chart.encode(color=color, tooltip=[alt.Tooltip(str(name)) for name in table.columns], **channels)
    if legend is None:
        return chart
    chosen = alt.selection_point(fields=["strategy"], bind="legend")
    return chart.add_params(chosen).encode(opacity=alt.when(chosen).then(alt.value(0.9)).otherwise(alt.value(0.07)))
