"""Draw latency and bus bandwidth of the collectives by message size."""

import argparse
from pathlib import Path

import pandas as pd

from shardlab.files import write_text
from shardlab.report import charts


def main() -> None:
    """Read the measurements, draw the chart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", type=Path, required=True, help="CSV file of `shardlab collectives`")
    parser.add_argument("--output", type=Path, required=True, help="SVG file to write")
    args = parser.parse_args()
    picture = charts.load("collectives").draw(pd.read_csv(args.figures))
    write_text(args.output, charts.svg(picture.to_dict()))
