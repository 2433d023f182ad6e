"""The charts of the report, one file each: what it shows (TITLE, CAPTION), its table, and how that is drawn.

A further chart is a further file, named in PER_WORKLOAD, PER_STRATEGY, SWEEP, OVERALL or BENCHMARKS.
"""

from importlib import import_module
from typing import Any, Protocol, cast

import altair as alt
import pandas as pd
import vl_convert

from shardlab.report.evidence import Evidence

# Altair refuses more than 5,000 rows, for the sake of notebooks; evidence.MARKS keeps the page small.
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
"""Of what `make bench` left in results/benchmarks."""


class Chart(Protocol):
    """What a file of this folder has."""

    TITLE: str
    """A few words."""
    CAPTION: str
    """What the axes are, and how it is read: for the page, and for who does not see the picture."""

    def table(self, evidence: Evidence) -> pd.DataFrame:
        """The figures, one row per mark; empty where the runs have none."""

    def draw(self, table: pd.DataFrame) -> alt.TopLevelMixin:
        """The picture of such a table."""


def svg(chart: dict[str, Any]) -> str:
    """A Vega-Lite specification as a picture, whose text stays text."""
    return str(vl_convert.vegalite_to_svg(chart))


def load(name: str) -> Chart:
    """The chart of that name."""
    return cast(Chart, import_module(f"shardlab.report.charts.{name}"))
