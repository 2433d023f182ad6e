"""Scripts as strategies: a user's own training, started and judged as the project's."""

import shutil

import pandas as pd
import pytest

from helpers.common import ROOT

STRATEGIES = """
my_one: {script: mine/train.py}
my_ddp: {script: mine/train.py, dp_replicate: -1}
my_wrong: {script: wrong/train.py, dp_replicate: -1}
"""
CONFIG = ["--config", "workloads=[mlp]", "dtype=float64", "recipe={global_batch_size: 31, max_steps: 40}"]


@pytest.fixture(scope="module")
def project(make_tree, tmp_path_factory):
    """A copy of the project with two scripts, of which one weighs each rank's mean the same."""
    tree = make_tree(tmp_path_factory.mktemp("scripts") / "tree")
    shutil.copytree(ROOT / "tests/helpers/own", tree.path / "mine")
    shutil.copytree(ROOT / "tests/helpers/own", tree.path / "wrong")
    means = tree.path / "wrong/means.py"
    right = "    for value in"
    each_alike = "    for parameter in model.parameters():\n        parameter.grad /= part * dist.get_world_size()\n"
    assert right in means.read_text()
    means.write_text(means.read_text().replace(right, each_alike + right))
    with (tree.path / "config/strategies.yaml").open("a") as file:
        file.write(STRATEGIES)
    return tree


def test_scripts_are_trained_and_judged_as_other_strategies(project):
    strategies = "strategies=[single,my_one,my_ddp,my_wrong]"
    said = project.snakemake(*CONFIG, strategies, "noise_floor_runs=0", "--", "all", check=False).stdout
    table = pd.read_csv(project.path / "results/summary.csv").set_index("strategy")
    assert dict(table.equality) == {
        "single": "equal",
        "my_one": "equal",
        "my_ddp": "equal",
        "my_wrong": "unequal",
    }, said
    assert list(table.world_size) == [1, 1, 2, 2]
    own = table.loc[["my_one", "my_ddp"]]
    assert own.bytes_per_step.isna().all()
    assert own.tensor_bytes.isna().all()
    assert (own.peak_memory_bytes > 50 * 2**20).all()
    report = project.json("results/my_ddp/mlp/train.json")
    assert len(report["hosts"]) == 2
    assert report["steps"] == 40
    page = (project.path / "results/plan.md").read_text()
    assert "- my_ddp x mlp: only mine/train.py itself knows what it will hold and send" in page
