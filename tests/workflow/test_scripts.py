"""Scripts as strategies: a user's own training, started and judged as the project's."""

import shutil
import signal

import pandas as pd
import pytest

from helpers.common import ROOT, until

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
    shutil.copy(ROOT / "scripts/traindiff/dump.py", tree.path / "wrong")
    means = tree.path / "wrong/means.py"
    right = "    for value in"
    each_alike = "    for parameter in model.parameters():\n        parameter.grad /= part * dist.get_world_size()\n"
    assert right in means.read_text()
    means.write_text(means.read_text().replace(right, each_alike + right))
    with (tree.path / "config/strategies.yaml").open("a") as file:
        file.write(STRATEGIES)
    return tree


@pytest.fixture(scope="module")
def said(project):
    """Output of a call that trains, judges and reports all of them."""
    strategies = "strategies=[single,my_one,my_ddp,my_wrong]"
    return project.snakemake(*CONFIG, strategies, "noise_floor_runs=0", "--", "all").stdout


def test_scripts_are_trained_and_judged_as_other_strategies(project, said):
    table = pd.read_csv(project.path / "results/summary.csv").set_index("strategy")
    assert dict(table.equality) == {"single": "equal", "my_one": "equal", "my_ddp": "equal", "my_wrong": "unequal"}, (
        said
    )
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


@pytest.mark.long
def test_the_dumps_of_a_script_are_diagnosed(project, said):
    place = "results/diagnosis/my_wrong/mlp.md"
    assert f"repeat the call with the target {place}" in (project.path / "results/summary.md").read_text()
    project.snakemake(*CONFIG, "--", place)
    page = (project.path / place).read_text()
    assert page.startswith("# my_wrong x mlp\n\n**First difference: step 0, gradient (4 of 4, first hidden.bias)")
    assert "Only `single` has clipped gradients" in page


@pytest.mark.long
def test_a_stopped_script_goes_on_with_its_checkpoints(project, said):
    folder = project.path / "results/my_ddp/mlp"
    before = (folder / "model.safetensors").read_bytes()
    (data,) = (project.path / "data/prepared").iterdir()
    words = ["python", "scripts/shardlab", "launch", "train", f"--settings={folder}/run.json", f"--data={data}"]
    words += ["--weights=results/init/mlp.safetensors", f"--output={folder}", f"--done={folder}.done"]
    process = project.start(*words, "--restart", FAULT="0.2")
    until((folder / "script/checkpoints/last.pt").exists, alive=lambda: process.poll() is None)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    project.run(*words)
    attempts = project.json("results/my_ddp/mlp/train.json")["attempts"]
    assert attempts[0]["why"] == "stopped: SIGTERM"
    assert attempts[-1]["from_step"] >= 1
    assert "goes on at step" in (folder / f"attempts/{len(attempts):03}.log").read_text()
    assert (folder / "model.safetensors").read_bytes() == before
