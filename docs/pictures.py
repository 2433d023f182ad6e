#!/usr/bin/env python3
"""Draw the README's picture from summary.csv: test loss, memory and traffic of each strategy on each workload.

Example: make run, then make pictures
"""

import argparse
import sys
from html import escape
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from shardlab.errors import UserError, run_program
from shardlab.files import write_text
from shardlab.settings import load

PICTURE = Path(__file__).parent / "strategies.svg"
LEFT, TOP, CELL, ROW = 96, 80, 172, 52
"""Where the first cell begins, and the size of a cell (pixels)."""
BAR, THICKNESS = 112, 10
"""Length of the longest bar, and the width of all bars (pixels)."""
MEMORY, TRAFFIC, EQUAL, UNEQUAL, BLACK, GRAY = "#4c78a8", "#e8934a", "#1e7b34", "#c0392b", "#1f2328", "#57606a"
COLORS = {"equal": EQUAL, "rounding": EQUAL, "reported": GRAY}
"""Color of a test loss, by the verdict; UNEQUAL for all other verdicts."""
TIMES = "\u00d7"


def main() -> None:
    """Draw the strategies and workloads of config/config.yaml."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summary", type=Path, default=Path("results/summary.csv"), help="the table of all runs")
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture (SVG)")
    args = parser.parse_args()
    if not args.summary.exists():
        raise UserError(f"{args.summary} does not exist; run: make run.")
    config = load.config(load.read_yaml(load.CONFIG / "config.yaml"))
    write_text(args.output, draw(pd.read_csv(args.summary), config.strategies, config.workloads))
    print(f"wrote {args.output}")


def draw(table: pd.DataFrame, strategies: list[str], workloads: list[str]) -> str:
    """SVG with a row per strategy and a column per workload; the cell of a run that is not done stays empty.

    A cell has the test loss, the memory of the fullest rank in percent of ``single``'s, and the bytes that a rank sends
    per step in multiples of the model's weights.
    """
    rows = table[(table.status == "done") & table.strategy.isin(strategies) & table.workload.isin(workloads)]
    runs = {(run["strategy"], run["workload"]): run for run in rows.to_dict("records")}
    if missing := [workload for workload in workloads if ("single", workload) not in runs]:
        raise UserError(f"no finished run of single on {', '.join(missing)} in the summary; run: make run.")
    most_sent = max(traffic(run, runs["single", workload]) for (_, workload), run in runs.items())
    width, height = LEFT + CELL * len(workloads), TOP + ROW * len(strategies)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *legend(),
    ]
    for column, workload in enumerate(workloads):
        x = LEFT + CELL * column
        held = size(runs["single", workload]["tensor_bytes"])
        parts += [text(x, TOP - 28, workload, size=15, bold=True), text(x, TOP - 11, f"single: {held}", color=GRAY)]
    for row, strategy in enumerate(strategies):
        y = TOP + ROW * row
        parts += [f'<path d="M0 {y}H{width}" stroke="#d0d7de"/>', text(8, y + 23, strategy, size=15, bold=True)]
        if ranks := sorted({int(runs[key]["world_size"]) for key in runs if key[0] == strategy}):
            parts.append(text(8, y + 40, f"{ranks[-1]} ranks" if ranks[-1] > 1 else "1 rank", color=GRAY))
        for column, workload in enumerate(workloads):
            if (strategy, workload) in runs:
                run, single = runs[strategy, workload], runs["single", workload]
                parts += cell(LEFT + CELL * column, y, run, single, most_sent)
    return "\n".join([*parts, "</svg>"]) + "\n"


def legend() -> list[str]:
    """What the colors mean, above the table."""
    return [
        text(8, 20, "test loss", color=EQUAL, bold=True),
        text(76, 20, "(green: equal to single, up to rounding)"),
        bar(342, 11, 12, MEMORY),
        text(359, 20, "tensors per rank, in percent of single"),
        bar(612, 11, 12, TRAFFIC),
        text(629, 20, "sent per rank and step, in multiples of the weights"),
    ]


def cell(x: int, y: int, run: dict, single: dict, most_sent: float) -> list[str]:
    """Test loss, memory and traffic of a run; the longest bars are 100 % of memory, and ``most_sent``."""
    memory, sent = run["tensor_bytes"] / single["tensor_bytes"], traffic(run, single)
    memory_length = round(BAR * min(memory, 1.0))
    sent_length = round(BAR * sent / most_sent) if sent else 0
    return [
        text(x, y + 16, f"{run['test_loss']:.4f}", color=COLORS.get(run["equality"], UNEQUAL), bold=True),
        bar(x, y + 22, memory_length, MEMORY),
        text(x + memory_length + 5, y + 31, f"{memory:.0%}" if memory < 10 else f"{TIMES}{memory:,.0f}", size=12),
        bar(x, y + 35, sent_length, TRAFFIC),
        text(x + sent_length + 5, y + 44, f"{TIMES}{sent:.1f}", size=12) if sent else "",
    ]


def traffic(run: dict, single: dict) -> float:
    """Bytes that a rank sends per step, in multiples of the model's weights."""
    return float(run["bytes_per_step"] / single["weights_bytes"])


def size(number: float) -> str:
    """Bytes in KiB or MiB."""
    return f"{number / 2**20:.1f} MiB" if number >= 2**20 else f"{number / 2**10:.1f} KiB"


def bar(x: int, y: int, length: int, color: str) -> str:
    """A horizontal bar."""
    return f'<rect x="{x}" y="{y}" width="{length}" height="{THICKNESS}" fill="{color}"/>'


def text(x: int, y: int, words: str, *, color: str = BLACK, size: int = 13, bold: bool = False) -> str:
    """Words that begin at x, on the base line y."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="{color}" font-size="{size}"{weight}>{escape(words)}</text>'


if __name__ == "__main__":
    run_program(main)
