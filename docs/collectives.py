#!/usr/bin/env python3
"""Draw the eight collectives of the course: what three ranks have before and after.

Example: python docs/collectives.py
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from shardlab.errors import run_program
from shardlab.files import write_text

PICTURE = Path(__file__).parent / "collectives.svg"
RANKS = "abc"
COLORS = {"a": "#4c78a8", "b": "#e8934a", "c": "#54a24b", "\u03a3": "#57606a"}
"""By the rank that a part comes from; the sum of all ranks' parts."""
CELL, PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 26, 232, 130, 4

Tensors = list[list[str]]
"""By rank its parts, such as a1; empty: it has none there."""


def whole(*ranks: str) -> Tensors:
    """Return ranks with whole tensors, one for each letter; a space is a rank with nothing."""
    return [[f"{rank}{part}".strip() if rank != " " else "" for part in (1, 2, 3)] for rank in ranks]


def own_part(letters: str) -> Tensors:
    """Return ranks that have one part each, the part of their own number, with these letters."""
    return [[f"{letters[rank]}{part + 1}" if part == rank else "" for part in range(3)] for rank in range(3)]


ONE, ALL = whole("a", " ", " "), whole(*RANKS)
SUM = "\u03a3"
COLLECTIVES: dict[str, tuple[Tensors, Tensors]] = {
    "broadcast": (ONE, whole("a", "a", "a")),
    "scatter": (ONE, own_part("aaa")),
    "gather": (own_part(RANKS), [["a1", "b2", "c3"], ["", "", ""], ["", "", ""]]),
    "all-gather": (own_part(RANKS), [["a1", "b2", "c3"]] * 3),
    "reduce": (ALL, whole(SUM, " ", " ")),
    "all-reduce": (ALL, whole(SUM, SUM, SUM)),
    "reduce-scatter": (ALL, own_part(SUM * 3)),
    "all-to-all": (ALL, [[f"{rank}{part}" for rank in RANKS] for part in (1, 2, 3)]),
}
"""By name: what the ranks have before and after."""


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture (SVG)")
    args = parser.parse_args()
    write_text(args.output, draw())
    print(f"wrote {args.output}")


def draw() -> str:
    """SVG with a panel per collective; in each, a row per rank."""
    width, height = PANEL_WIDTH * COLUMNS, PANEL_HEIGHT * (len(COLLECTIVES) // COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (name, (before, after)) in enumerate(COLLECTIVES.items()):
        x, y = number % COLUMNS * PANEL_WIDTH + 16, number // COLUMNS * PANEL_HEIGHT + 24
        parts.append(f'<text x="{x}" y="{y}" font-size="15" font-weight="bold" fill="#1f2328">{name}</text>')
        parts += grid(x + 14, y + 10, before, numbered=True)
        arrow = x + 14 + 3 * CELL + 9
        parts.append(f'<text x="{arrow}" y="{y + 14 + 1.6 * CELL:g}" fill="#57606a">\u2192</text>')
        parts += grid(arrow + 20, y + 10, after, numbered=False)
    return "\n".join([*parts, "</svg>"]) + "\n"


def grid(x: float, y: float, tensors: Tensors, *, numbered: bool) -> list[str]:
    """Draw what each rank has, a row per rank."""
    drawn = []
    for rank, parts in enumerate(tensors):
        top = y + rank * CELL
        if numbered:
            drawn.append(f'<text x="{x - 12}" y="{top + 17}" fill="#57606a">{rank}</text>')
        for place, label in enumerate(parts):
            left, fill = x + place * CELL, COLORS[label[0]] if label else "none"
            box = f'x="{left}" y="{top}" width="{CELL - 3}" height="{CELL - 3}"'
            drawn.append(f'<rect {box} fill="{fill}" stroke="#d0d7de"/>')
            middle = f'x="{left + CELL / 2 - 1.5:g}" y="{top + 16}"'
            drawn += [f'<text {middle} fill="white" text-anchor="middle">{label}</text>'] * bool(label)
    return drawn


if __name__ == "__main__":
    run_program(main)
