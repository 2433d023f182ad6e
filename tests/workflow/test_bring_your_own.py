"""docs/bring-your-own.md, followed to the letter: its files, its entries, its command; and the fault of
docs/diagnose.md, put into them.
"""

import re

import pandas as pd
import pytest

from helpers.common import ROOT
from helpers.documents import follow, without_twins


@pytest.mark.long
def test_the_document_is_followed_literally(tree):
    without_twins(tree)
    [command] = follow((ROOT / "docs/bring-your-own.md").read_text(), tree)
    tree.run("sh", "-c", command)
    table = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
    assert list(table.index) == ["single", "fsdp", "hsdp_tp", "pp_tp", "zero_mine"]
    assert (table.rel_diff < 1e-4).all()
    assert (table.test_loss < 0.98 * table.untrained_test_loss).all()
    assert table.bytes_per_step["pp_tp"] > 0
    # And the project's own tests take the reader's files as what they are.
    tree.run("python", "-m", "pytest", "tests/unit/test_resolve.py", "tests/unit/test_sites.py")
    # A gated layer that the plan's lines do not fit.
    text = (
        (ROOT / "docs/diagnose.md")
        .read_text()
        .partition("## A page from a real fault")[2]
        .partition("## Other trainers")[0]
    )
    change = re.search(r"```diff\n.*?```", text, re.DOTALL)[0]
    [command] = follow(change + re.search(r"```console\n.*?```", text, re.DOTALL)[0], tree)
    tree.run("sh", "-c", command)
    page = (tree.path / "results/diagnosis/tp/ngram.md").read_text()
    assert rounded(page) == rounded(re.search(r"```markdown\n(.*?)```", text, re.DOTALL)[1])


def rounded(page):
    """A page without the digits of its differences, which depend on the processor."""
    return re.sub(r"\d\.\de[+-]\d+", "X", page).strip()
