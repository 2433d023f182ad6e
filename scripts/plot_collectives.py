#!/usr/bin/env python3
"""Draw latency and bus bandwidth of the collectives over the size of the message."""

import argparse
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from shardlab.errors import run_program
from shardlab.files import write_atomic


def main() -> None:
    """Read the figures, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", type=Path, required=True, help="CSV file that collectives.py wrote")
    parser.add_argument("--output", type=Path, required=True, help="SVG file to write")
    args = parser.parse_args()
    table = pd.read_csv(args.figures)
    figure = draw(table)
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text, to be searched and read aloud
    write_atomic(args.output, lambda path: figure.savefig(path, format="svg", bbox_inches="tight"))


def draw(table: pd.DataFrame) -> Figure:
    """Two panels over the message size, one line per collective, both axes logarithmic."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    columns = {"microseconds": "time (µs)", "bus_gb_per_second": "bus bandwidth (GB/s)"}
    for panel, (column, label) in zip(panels, columns.items(), strict=True):
        for name, rows in table.groupby("collective", sort=False):
            panel.plot(rows["bytes"], rows[column], marker="o", markersize=3, label=str(name))
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("message (bytes)")
        panel.set_ylabel(label)
        panel.grid(True, which="major", alpha=0.3)
    first = table.iloc[0]
    figure.suptitle(f"Collectives at site {first['site']}: {first['ranks']} ranks on {first['nodes']} node(s)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


if __name__ == "__main__":
    run_program(main)
