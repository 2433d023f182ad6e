"""The example of docs/your-own.md, followed to the letter: its files, its command."""

import pandas as pd
import pytest

from helpers.common import ROOT
from helpers.documents import follow, section, without_twins


@pytest.mark.long
def test_the_document_is_followed_literally(tree):
    without_twins(tree)
    [command] = follow(section(ROOT / "docs/your-own.md", "An example, word for word"), tree)
    tree.run("sh", "-c", command)
    table = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
    assert list(table.index) == ["single", "fsdp", "ddp_tp", "pp_tp", "zero_mine"]
    assert (table.rel_diff < 1e-4).all()
    assert (table.test_loss < 0.98 * table.untrained_test_loss).all()
    assert table.bytes_per_step["pp_tp"] > 0
