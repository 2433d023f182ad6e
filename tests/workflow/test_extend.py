"""The section Extend of docs/developing.md, followed to the letter: its files, its diffs, its commands."""

import pandas as pd
import pytest

from helpers.common import ROOT
from helpers.documents import follow, section, without_twins

PLACES = ("scripts", "config", "workflow")


@pytest.fixture(scope="module")
def extended(make_tree, tmp_path_factory):
    """A copy of the project with everything that the document adds, and the commands that it types then."""
    tree = make_tree(tmp_path_factory.mktemp("extend") / "tree")
    without_twins(tree)
    return tree, follow(section(ROOT / "docs/developing.md", "Extend"), tree)


@pytest.mark.long
def test_an_optimizer_a_task_and_an_axis_train_together(extended):
    tree, (command, *_) = extended
    tree.run("sh", "-c", command)
    table = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
    assert list(table.index) == ["single", "ddp", "spatial"]
    assert table.rel_diff.max() < 1e-5
    assert table.metric_name["spatial"] == "accuracy"
    assert (table.test_loss < 0.5 * table.untrained_test_loss).all()
    report = tree.json("results/spatial/tumours/train.json")
    assert report["mesh"] == {"spatial": 2}
    assert report["bytes_per_step"] == 0


def test_a_launcher_is_a_file_and_a_key(extended):
    tree, (_, resolve, launch) = extended
    tree.run("sh", "-c", resolve)
    lines = tree.run("sh", "-c", launch).stdout.splitlines()
    assert lines[-1].startswith("exec mpiexec -n 2 -ppn 1 -genvall -bind-to none bash -c 'exec ")
    assert "is_host=$((PMI_RANK == 0))" in lines[-1]
    assert lines[-2].endswith(':$((20000 + ${PBS_JOBID%%.*} % 10000))"')


def test_an_unused_axis_and_an_unused_precision_are_one_file_each(extended):
    """The rest derives from what they declare there: nothing else was edited, except for what is generated."""
    tree, _ = extended
    tree.run("python", "scripts/docs.py")
    places = {
        name: tree.run("grep", "-rlw", "--include=*.py", "--include=*.md", name, *PLACES).stdout.split()
        for name in ("spatial", "mxfp8")
    }
    assert {name: sorted(files) for name, files in places.items()} == {
        "spatial": ["scripts/shardlab/settings/mesh.py"],
        "mxfp8": ["scripts/shardlab/settings/precisions.py"],
    }
    call = ("python", "scripts/shardlab", "resolve", "--config={}", "--workload=mlp@precision=mxfp8", "--strategy")
    tree.run(*call, "fsdp")
    refused = tree.run(*call, "zero2", check=False).stdout
    assert "zero2 cannot train in mxfp8: DeepSpeed does not support MXFP8; set recipe.precision to bf16." in refused
