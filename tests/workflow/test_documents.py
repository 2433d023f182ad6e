"""The documentation site, and the examples of two documents, followed to the letter: files, diffs and commands."""

import re
import shutil

import pandas as pd
import pytest

from helpers.common import ROOT, Tree
from helpers.documents import follow, section, without_twins


def test_the_site_is_built_and_its_links_lead_somewhere(make_tree, tmp_path):
    make_tree(tmp_path / ".site")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    Tree(tmp_path).run("python", "-m", "mkdocs", "build", "--strict")
    page = (tmp_path / "site/docs/cluster/index.html").read_text()
    assert not re.search(r"<(script|link|img)\b[^>]*https?://", page), "nothing is loaded from elsewhere"


@pytest.mark.long
def test_an_own_model_and_own_strategies(tree):
    without_twins(tree)
    [command] = follow(section(ROOT / "docs/your-own.md", "An example, word for word"), tree)
    tree.run("sh", "-c", command)
    table = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
    assert list(table.index) == ["single", "fsdp", "ddp_tp", "pp_tp", "zero_mine"]
    assert (table.rel_diff < 1e-4).all()
    assert (table.test_loss < 0.98 * table.untrained_test_loss).all()
    assert table.bytes_per_step["pp_tp"] > 0


@pytest.fixture(scope="module")
def extended(make_tree, tmp_path_factory):
    """A copy of the project with everything that docs/developing.md adds, and the commands that it types then."""
    tree = make_tree(tmp_path_factory.mktemp("extend") / "tree")
    without_twins(tree)
    return tree, follow(section(ROOT / "docs/developing.md", "Extend"), tree)


@pytest.mark.long
def test_an_optimizer_a_task_and_an_axis_train_together(extended):
    tree, [command] = extended
    tree.run("sh", "-c", command)
    table = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
    assert list(table.index) == ["single", "ddp", "spatial"]
    assert table.rel_diff.max() < 1e-5
    assert table.metric_name["spatial"] == "accuracy"
    assert (table.test_loss < 0.5 * table.untrained_test_loss).all()
    assert tree.json("results/spatial/tumours/train.json")["mesh"] == {"spatial": 2}


def test_a_precision_is_an_entry(extended):
    tree, _ = extended
    call = ("python", "scripts/shardlab", "resolve", "--config={}", "--workload=mlp@precision=mxfp8", "--strategy")
    tree.run(*call, "fsdp")
    refused = tree.run(*call, "zero2", check=False).stdout
    assert "zero2 cannot train in mxfp8: DeepSpeed does not support MXFP8; set recipe.precision to bf16." in refused
