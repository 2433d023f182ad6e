"""The course, worked through: every command of its text, with the answers at its end."""

import json
import re
import shutil

import course
import pandas as pd
import pytest

from helpers.common import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
TEXT = (ROOT / "docs/course.md").read_text()
STEPS = 60
"""Steps of the killed run: fewer than a reader's 400 show as much in less time."""
SHELL = 'set -e; shardlab() { python scripts/shardlab "$@"; }\n'
"""What is installed as shardlab belongs to one clone, and this is a copy."""


@pytest.fixture(scope="module")
def tree(make_tree, tmp_path_factory):
    """A copy of the project in which trainings are short."""
    tree = make_tree(tmp_path_factory.mktemp("learner") / "course")
    config = tree.path / "config/config.yaml"
    config.write_text(config.read_text().replace("\nrecipe: {}\n", "\nrecipe: {max_steps: 8}\n"))
    return tree


def do(tree, number):
    """Type the blocks of a lesson (0: before the first)."""
    text = TEXT.replace('"max_steps": 400', f'"max_steps": {STEPS}').replace("max_steps: 400", f"max_steps: {STEPS}")
    blocks = re.findall(r"^```console\n(.*?)^```", text.split("\n## ")[number], re.M | re.S)
    assert blocks
    for block in blocks:
        tree.run("bash", "-c", SHELL + block, timeout=900)


def column(tree, name):
    return pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")[name].to_dict()


def test_the_course_can_be_worked_through(tree):
    do(tree, 0)
    do(tree, 1)
    equality = column(tree, "equality")
    assert (equality["example_ddp"], equality["exercise_alone"]) == ("equal", "unequal")
    for name in ("ddp", "fsdp", "tensor_parallel"):
        shutil.copy(ROOT / f"examples/{name}.py", tree.path / f"examples/exercises/{name}.py")
    do(tree, 2)
    assert [column(tree, "equality")[f"exercise_{name}"] for name in ("ddp", "fsdp", "tensor_parallel")] == [
        "equal"
    ] * 3
    do(tree, 3)
    rows = re.findall(r"^\| (ddp|fsdp|tp|pp) \|(.*)\|$", TEXT, re.MULTILINE)
    columns = ("bytes_per_step", "weights_bytes", "gradients_bytes", "optimizer_bytes")
    for strategy, row in rows:
        answers = [int(cell.split()[-1]) for cell in row.split("|")]
        assert [column(tree, name)[strategy] for name in columns] == pytest.approx(answers, rel=0.05), strategy
    assert len(rows) == 4
    do(tree, 4)
    idle = pd.read_csv(tree.path / "results/charts/pipeline_bubble.llama2.csv").set_index("strategy").idle
    assert idle["pp_gpipe@n_microbatches=1"] >= 0.5, "with one micro-batch one rank works at a time"
    do(tree, 5)
    mib = {strategy: round(sent / 2**20, 2) for strategy, sent in column(tree, "bytes_per_step").items()}
    assert mib == {"single": 0, "fsdp": 1.91, "tp_sp": 5.14, "cp": 2.41, "ep": pytest.approx(1.70, abs=0.02)}
    weights = column(tree, "weights_bytes")
    assert [weights[name] / weights["single"] for name in ("cp", "ep")] == pytest.approx([0.5, 0.743], abs=0.01)
    do(tree, 6)
    page = (tree.path / "exercise/results/diagnosis/ddp/mlp.md").read_text()
    assert f"; cause: {course.COURSE['faults']['1']['cause']}: " in page


def test_a_killed_run_survives(tree):
    do(tree, 8)
    attempts = json.loads((tree.path / "results/fsdp/llama2/attempts.json").read_text())["attempts"]
    assert attempts[-1]["why"] == "finished"
    assert attempts[-1]["from_step"] >= 5
    assert json.loads((tree.path / "results/fsdp/llama2/train.json").read_text())["lost_steps"] == 0
