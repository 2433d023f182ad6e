"""docs/extend.md, followed to the letter: its files, its diffs, its commands."""

import json

import pandas as pd
import pytest

from helpers.common import ROOT
from helpers.documents import follow


@pytest.fixture(scope="module")
def extended(make_tree, tmp_path_factory):
    """A copy of the project with everything that the document adds, and the commands that it types then."""
    tree = make_tree(tmp_path_factory.mktemp("extend") / "tree")
    return tree, follow((ROOT / "docs/extend.md").read_text(), tree)


def test_an_optimizer_a_schedule_a_task_and_an_axis_train_together(extended):
    tree, (command, *_) = extended
    tree.run("sh", "-c", command)
    table = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
    assert list(table.index) == ["single", "ddp", "spatial"]
    assert table.rel_diff.max() < 1e-5
    assert table.metric_name["spatial"] == "accuracy"
    assert (table.test_loss < 0.5 * table.untrained_test_loss).all()
    report = tree.json("results/spatial/tumours/train.json")
    assert report["mesh"] == {"spatial": 2}
    assert report["bytes_per_step"] == report["bytes_per_step_theory"] == 0
    metrics = tree.path / "results/spatial/tumours/metrics.jsonl"
    rates = [json.loads(line) for line in metrics.read_text().splitlines()]
    rates = [line["learning_rate"] for line in rates if line["kind"] == "train"]
    assert rates[:5] == pytest.approx([0.01 * part / 6 for part in range(1, 6)])
    assert rates[8] == pytest.approx(0.01 / 2)


def test_a_rule_is_a_program_and_an_include(extended):
    tree, (_, command, *_) = extended
    tree.run("sh", "-c", command)
    table = pd.read_csv(tree.path / "results/losses/cp/tumours.csv")
    assert list(table.step) == [*range(tree.json("results/cp/tumours/train.json")["steps"])]


def test_a_launcher_is_a_file_and_a_key(extended):
    tree, (_, _, resolve, launch, *_) = extended
    tree.run("sh", "-c", resolve)
    lines = tree.run("sh", "-c", launch).stdout.splitlines()
    assert lines[-1].startswith("exec mpiexec -n 2 -ppn 1 -genvall -bind-to none bash -c 'exec ")
    assert "is_host=$((PMI_RANK == 0))" in lines[-1]
    assert lines[-2].endswith(':$((20000 + ${PBS_JOBID%%.*} % 10000))"')


def test_another_container_runtime_is_data(extended):
    tree, (*_, resolve, launch) = extended
    tree.run("sh", "-c", resolve)
    last = tree.run("sh", "-c", launch).stdout.splitlines()[-1]
    program = f"{tree.path}/scripts/fork_torchrun.py"
    image = f"--volume {tree.path}:{tree.path} --workdir {tree.path} IMAGE /usr/bin/python3 {program}"
    assert last.startswith(f"exec podman-hpc run --rm --env-host --gpu {image}")


def test_an_axis_that_nothing_uses_yet_is_three_files(extended):
    """The mesh, and what `make docs` writes from it."""
    tree, _ = extended
    tree.run("python", "scripts/docs.py")
    found = tree.run("grep", "-rl", "spatial parallelism", "scripts", "config", "workflow")
    files = sorted(line for line in found.stdout.splitlines() if "__pycache__" not in line)
    assert files == ["config/README.md", "scripts/shardlab/settings/mesh.py", "workflow/schemas/strategies.json"]
