#!/usr/bin/env python3
"""Draw the tables that the benchmarks wrote: an SVG next to each CSV file.

Example: python benchmarks/charts.py --folder results/benchmarks
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from shardlab.errors import run_program
from shardlab.files import write_text
from shardlab.report.charts import svg
from shardlab.report.charts.helpers import HEIGHT, LEGEND, ROW, WIDTH, over_ranks

WRITTEN = {"synchronous, in steps": "synchronous", "asynchronous, in steps": "asynchronous"}
PANELS = ("tensor MiB per rank", "sent MiB per rank and step", "step ms")
SWEEP = {
    "dry run s": "dry run",
    "bare s": "bare Snakefile",
    "one job reads s": "parse in one job",
    "resolve one s": "resolve one run",
    "summarize s": "summarize",
}


def main() -> None:
    """Draw every table that exists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("results/benchmarks"), help="folder of the CSV files")
    folder = parser.parse_args().folder
    for path in sorted(folder.rglob("*.csv")):
        if path.stem in CHARTS:
            picture = path.with_suffix(".svg")
            write_text(picture, svg(CHARTS[path.stem](pd.read_csv(path)).to_dict()))
            print(f"wrote {picture}")


def peers(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw time per step relative to the bare loop: a point per trainer with two standard errors, a row per model."""
    shown = table[table.trainer != "bare"]
    shown = shown.assign(
        label=shown.strategy + ", " + shown["size"],
        low=shown["to bare"] - 2 * shown["standard error"],
        high=shown["to bare"] + 2 * shown["standard error"],
    )
    y = alt.Y("label:N", title=None, sort=list(dict.fromkeys(shown.label)))
    color = _series("trainer", shown)
    base = alt.Chart(shown, width=WIDTH).encode(y, color, alt.YOffset("trainer:N"))
    points = base.mark_point(filled=True, size=70).encode(alt.X("to bare:Q", scale=alt.Scale(zero=False)))
    bars = base.mark_rule().encode(alt.X("low:Q", title="time per step, relative to the bare loop"), alt.X2("high:Q"))
    one = alt.Chart().mark_rule(color="grey", strokeDash=[4, 3]).encode(alt.X(datum=1))
    return alt.layer(one, bars, points, data=shown)


def checkpoints(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the training time lost to one checkpoint, in steps: two bars per strategy and size."""
    named = table.assign(run=table.strategy + ", " + table["size"])
    long = named.melt("run", [*WRITTEN], "written", "steps").replace({"written": WRITTEN})
    y = alt.Y("run:N", title=None, sort=list(dict.fromkeys(long.run)))
    chart = alt.Chart(long, width=WIDTH, height=2 * ROW * named.run.nunique()).mark_bar()
    return chart.encode(y, alt.X("steps:Q"), alt.YOffset("written:N"), _series("written", long))


def scaling(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw memory, traffic, and time per step over the number of ranks: a panel each, a line per strategy."""
    color = alt.Color("strategy:N", legend=LEGEND, sort=list(dict.fromkeys(table.strategy)))
    lines = _lines(table, HEIGHT // 2)
    return alt.vconcat(*(lines.encode(over_ranks(table), alt.Y(f"{panel}:Q"), color) for panel in PANELS))


def sweeps(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the seconds of each part of a sweep over the number of runs, on logarithmic axes."""
    long = table.melt("runs", [*SWEEP], "what", "seconds").replace({"what": SWEEP})
    log = alt.Scale(type="log")
    return _lines(long, HEIGHT).encode(alt.X("runs:Q", scale=log), alt.Y("seconds:Q", scale=log), _series("what", long))


def _lines(table: pd.DataFrame, height: int) -> alt.Chart:
    return alt.Chart(table, width=WIDTH, height=height).mark_line(point=True)


def _series(column: str, table: pd.DataFrame) -> alt.Color:
    """Colors of a column's values, in the order of the table."""
    return alt.Color(f"{column}:N", title=None, sort=list(dict.fromkeys(table[column])))


CHARTS: dict[str, Callable[[pd.DataFrame], Any]] = {
    chart.__name__: chart for chart in (peers, checkpoints, scaling, sweeps)
}
"""Name of a CSV file: its chart."""


if __name__ == "__main__":
    run_program(main)
