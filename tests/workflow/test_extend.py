"""The section Extend of docs/developing.md, followed to the letter: its files, its diffs, its commands."""

import json

import pandas as pd
import pytest

from helpers.common import ROOT
from helpers.documents import follow, section, without_twins

PLACES = ("scripts", "config", "workflow")
KNOWS = """
import json
from types import SimpleNamespace
from shardlab import models
from shardlab.errors import Unsupported
from shardlab.report import families
from theory import replica_traffic, state_bytes
from shardlab.settings import load, resolve
import torch
found = {}
for strategy, ranks in (("fsdp", 2), ("fsdp@spatial=2", 4)):
    run = resolve.run(load.config({"ranks_per_node": ranks, "recipe": {"precision": "mxfp8"}}), strategy, "mlp")
    train = SimpleNamespace(settings=run.model_dump(), parameters=2**10)
    found[strategy] = {
        "mesh": run.mesh.root,
        "data_size": run.mesh.data_size,
        "copies": run.mesh.copies,
        "sent": replica_traffic(run, models.build(run.model, run.task, torch.float32).to("meta")),
        "held": state_bytes(train),
        "family": families.family(train),
        "sources": run.sources,
    }
try:
    resolve.run(load.config({"recipe": {"precision": "mxfp8"}}), "zero2", "mlp")
except Unsupported as refusal:
    found["refused"] = str(refusal)
print(json.dumps(found))
"""
"""Prints what the rules derive for an axis and a precision that nothing uses."""


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
    found = json.loads(tree.run("python", "-c", KNOWS, PYTHONPATH="scripts:tests/parity").stdout.splitlines()[-1])
    fsdp, both = found["fsdp"], found["fsdp@spatial=2"]
    assert (fsdp["mesh"], both["mesh"]) == ({"dp_shard": 2}, {"dp_shard": 2, "spatial": 2})
    for key in ("data_size", "sent", "held", "family", "sources"):
        assert both[key] == fsdp[key], key
    assert (fsdp["copies"], both["copies"]) == (1, 2)
    assert (
        found["refused"]
        == "zero2 cannot train in mxfp8: DeepSpeed does not support MXFP8; set recipe.precision to bf16."
    )
