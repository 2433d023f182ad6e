"""The README's picture: what its cells say of a table of runs."""

import sys
from xml.etree import ElementTree

import pandas as pd
import pytest

from helpers.common import ROOT
from shardlab.errors import UserError

sys.path.append(str(ROOT / "docs"))
import collectives
import pictures

RUNS = pd.DataFrame(
    [
        ("single", "mlp", "done", 0.5, "equal", 1, 2048, 100, 0),
        ("ddp", "mlp", "done", 0.50001, "equal", 2, 1024, 100, 100),
        ("fsdp", "mlp", "done", 0.75, "unequal", 2, 512, 50, 150),
        ("single", "vit", "done", 2.0, "equal", 1, 3 * 2**20, 1000, 0),
        ("ddp", "vit", "stale: seed", None, None, None, None, None, None),
        ("fsdp", "vit", "done", 2.0, "rounding", 2, 36 * 2**20, 500, 3000),
    ],
    columns=[
        *("strategy", "workload", "status", "test_loss", "equality", "world_size"),
        *("tensor_bytes", "weights_bytes", "bytes_per_step"),
    ],
)
STRATEGIES, WORKLOADS = ["single", "ddp", "fsdp"], ["mlp", "vit"]


def drawn(x, y, tag):
    """Elements of a cell of the picture, by the column and row of the table."""
    left, top = pictures.LEFT + pictures.CELL * x, pictures.TOP + pictures.ROW * y
    svg = ElementTree.fromstring(pictures.draw(RUNS, STRATEGIES, WORKLOADS))
    return [
        each
        for each in svg.iter(f"{{http://www.w3.org/2000/svg}}{tag}")
        if left <= float(each.get("x", -1)) < left + pictures.CELL
        and top <= float(each.get("y", -1)) < top + pictures.ROW
    ]


def test_a_cell_has_loss_memory_and_traffic():
    for place, words, lengths in (
        ((0, 0), ["0.5000", "100%"], [1, 0]),
        ((0, 1), ["0.5000", "50%", "\u00d71.0"], [1 / 2, 1 / 3]),
        ((1, 1), [], []),
        ((1, 2), ["2.0000", "\u00d712", "\u00d73.0"], [1, 1]),
    ):
        assert [each.text for each in drawn(*place, "text")] == words
        widths = [round(pictures.BAR * length) for length in lengths]
        assert [int(each.get("width")) for each in drawn(*place, "rect")] == widths


def test_the_color_of_a_loss_is_that_of_its_verdict():
    colors = {place: drawn(*place, "text")[0].get("fill") for place in ((0, 1), (0, 2), (1, 2))}
    assert colors == {(0, 1): pictures.EQUAL, (0, 2): pictures.UNEQUAL, (1, 2): pictures.EQUAL}


def test_a_table_without_single_is_refused():
    with pytest.raises(UserError, match="no finished run of single on vit"):
        pictures.draw(RUNS[RUNS.workload == "mlp"], STRATEGIES, WORKLOADS)


def test_the_collectives_are_drawn_as_they_are_now():
    assert collectives.PICTURE.read_text() == collectives.draw(), "python docs/collectives.py"
    drawn = {
        label for tensors in collectives.COLLECTIVES.values() for ranks in tensors for row in ranks for label in row
    }
    assert drawn - {""} == {f"{rank}{part}" for rank in "abc\u03a3" for part in (1, 2, 3)}
