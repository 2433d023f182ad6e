"""The charts of the report, one file each: its title and caption, its table, and its drawing.

To add a chart, add a file named in PER_WORKLOAD, PER_STRATEGY or SWEEP. What its table can be made of is in
``report/run_data.py``. Imports no torch.
"""

from importlib import import_module
from typing import Any, Protocol, cast

import altair as alt
import pandas as pd
import vl_convert

from shardlab.report.charts.helpers import ANCHORS as ANCHORS
from shardlab.report.run_data import RunData

# Altair refuses more than 5,000 rows to protect notebooks; run_data.MARKS keeps the page small.
alt.data_transformers.disable_max_rows()

PER_WORKLOAD = (
    "loss",
    "difference",
    "speed_and_memory",
    "memory",
    "traffic",
    "pipeline_bubble",
    "expert_load",
)
COMPARISON = "speed_and_memory"
"""The one of these that the page begins with."""
PER_STRATEGY = ("memory_per_rank", "schedule")
SWEEP = ("sweep",)


class Chart(Protocol):
    """Contents of a file in this folder."""

    TITLE: str
    """A few words."""
    CAPTION: str
    """The axes and how to read the chart, for the page and for screen readers."""

    def table(self, run_data: RunData) -> pd.DataFrame:
        """Return the data, one row per mark; empty if the runs have none."""

    def draw(self, table: pd.DataFrame) -> alt.TopLevelMixin:
        """Draw the table."""


def svg(chart: dict[str, Any]) -> str:
    """A Vega-Lite specification as a picture, whose text stays text."""
    vega = vl_convert.vegalite_to_vega(chart)
    place_labels(vega["marks"])
    return str(vl_convert.vega_to_svg(vega))


def place_labels(marks: list[dict[str, Any]]) -> None:
    """Have Vega place the labels among ``marks`` where they cover nothing, and hide those without room.

    Vega-Lite cannot say that. The page does the same (``placeLabels`` in page.js).
    """
    for mark in marks:
        for style in ANCHORS.keys() & set(mark.get("style", ())):
            size = {"signal": "[width, height]"}
            mark["transform"] = [{"type": "label", "size": size, "anchor": ANCHORS[style], "offset": [7]}]
        place_labels(mark.get("marks", []))


def load(name: str) -> Chart:
    return cast(Chart, import_module(f"shardlab.report.charts.{name}"))
