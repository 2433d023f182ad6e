"""The example of docs/your-own.md, followed to the letter: its files, its command; and a fault put into them."""

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
    # And the project's own tests take the reader's files as what they are.
    tree.run("python", "-m", "pytest", "tests/unit/test_resolve.py", "tests/unit/test_sites.py")
    # A gated layer that the plan's lines do not fit: each rank pairs its own features.
    model = tree.path / "scripts/shardlab/models/ngram.py"
    text = model.read_text()
    for right, wrong in (("nn.Linear(hidden, dim)", "nn.Linear(hidden // 2, dim)"), ("F.relu(", "F.glu(")):
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    model.write_text(text)
    tree.run("snakemake", "--profile", "workflow/profiles/local", "--", "results/diagnosis/tp/ngram.md")
    page = (tree.path / "results/diagnosis/tp/ngram.md").read_text()
    assert "**First difference: step 0, output (3 of 5, first down/0); no formula fits.**" in page
