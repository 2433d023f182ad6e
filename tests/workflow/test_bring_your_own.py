"""docs/bring-your-own.md, followed to the letter: its files, its entries, its command."""

import pandas as pd
import pytest

from helpers.common import ROOT
from helpers.documents import follow


@pytest.mark.long
def test_the_document_is_followed_literally(tree):
    [command] = follow((ROOT / "docs/bring-your-own.md").read_text(), tree)
    tree.run("sh", "-c", command)
    table = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
    assert list(table.index) == ["single", "fsdp", "hsdp_tp", "pp_tp", "zero_mine"]
    assert (table.rel_diff < 1e-4).all()
    assert (table.test_loss < 0.98 * table.untrained_test_loss).all()
    assert table.bytes_per_step["pp_tp"] > 0
    # And the project's own tests take the reader's files as what they are.
    tree.run("python", "-m", "pytest", "tests/unit/test_resolve.py", "tests/unit/test_sites.py")
