"""docs/bring-your-own.md, followed to the letter: its files, its entries, its command."""

import re

import pandas as pd

from helpers.common import ROOT


def test_the_document_is_followed_literally(tree):
    text = (ROOT / "docs/bring-your-own.md").read_text()
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    files = {re.match(r"# (\S+)", block)[1]: block for kind, block in blocks if kind != "console"}
    assert len(files) == 7
    for name, block in files.items():
        path = tree.path / name
        if name == "config/strategies.yaml":
            path.open("a").write(block)
            continue
        assert not path.exists()
        path.write_text(block.split("\n", 1)[1] if name.endswith(".json") else block)  # JSON has no comments
    [command] = [block for kind, block in blocks if kind == "console"]
    tree.run("sh", "-c", command.replace(".venv/bin/", ""))
    table = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
    assert list(table.index) == ["single", "fsdp", "hsdp_tp", "pp_tp", "zero_mine"]
    assert (table.rel_diff < 1e-4).all()
    assert (table.test_loss < 0.98 * table.untrained_test_loss).all()
    assert table.bytes_per_step["pp_tp"] > 0
