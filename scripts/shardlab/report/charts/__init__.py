"""Charts of the report, one file each: title and caption (TITLE, CAPTION), the table, and its drawing.

A further chart is a further file, named in PER_WORKLOAD, PER_STRATEGY, SWEEP, OVERALL or BENCHMARKS.
"""

from importlib import import_module
from typing import Any, Protocol, cast

import altair as alt
import pandas as pd
import vl_convert

from shardlab.report.evidence import Evidence

# Altair refuses more than 5,000 rows to protect notebooks; evidence.MARKS keeps the page small.
alt.data_transformers.disable_max_rows()

PER_WORKLOAD = (
    "loss",
    "difference",
    "speed_and_memory",
    "memory",
    "foreseen",
    "traffic",
    "waiting",
    "split_size",
    "usage",
)
PER_STRATEGY = ("held", "step", "schedule")
SWEEP = ("sweep",)
OVERALL = ("jobs", "collectives")
BENCHMARKS = ("peers", "starting", "checkpoints", "scaling", "sweep_cost")
"""Charts of what `make bench` left in results/benchmarks."""


class Chart(Protocol):
    """Contents of a file in this folder."""

    TITLE: str
    """A few words."""
    CAPTION: str
    """Axes and interpretation, for the page and as alternative text."""

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """Return the data, one row per mark; empty if the runs have none."""

    def draw(self, table: pd.DataFrame) -> alt.TopLevelMixin:
        """Draw the table."""


def svg(chart: dict[str, Any]) -> str:
    """Render a Vega-Lite specification as SVG, keeping text as text."""
    return str(vl_convert.vegalite_to_svg(chart))


def load(name: str) -> Chart:
    """Import the chart of that name."""
    return cast(Chart, import_module(f"shardlab.report.charts.{name}"))
