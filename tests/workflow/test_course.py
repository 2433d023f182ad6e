"""The course, worked through: every command of its text, with the right answers."""

import json
import re
import shutil

import pandas as pd
import pytest
import yaml

from helpers.common import ROOT
from shardlab.course import exercises
from shardlab.settings import load

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
FEWER = ('"max_steps": 400', "max_steps: 400"), ('"max_steps": 60', "max_steps: 60")
"""Steps of the killed run: what a reader types, and what shows as much of it in less time."""
SHELL = 'set -e; shardlab() { python scripts/shardlab "$@"; }\n'
"""What is installed as shardlab belongs to one clone, and this is a copy."""


@pytest.fixture(scope="module")
def tree(make_tree, tmp_path_factory):
    """A copy of the project in which trainings are short."""
    tree = make_tree(tmp_path_factory.mktemp("learner") / "course")
    config = tree.path / "config/config.yaml"
    config.write_text(config.read_text().replace("\nrecipe: {}\n", "\nrecipe: {max_steps: 8}\n"))
    return tree


@pytest.fixture(scope="module")
def blocks():
    """By lesson (0: before the first), the console blocks."""
    text = (ROOT / "docs/course.md").read_text()
    for shown, fewer in zip(*FEWER, strict=True):
        assert shown in text
        text = text.replace(shown, fewer)
    return [re.findall(r"^```console\n(.*?)^```", part, re.M | re.S) for part in text.split("\n## ")]


@pytest.fixture
def do(tree):
    """Function that answers a lesson and types a block; returns what it printed."""

    def typed(block, number=0, answers=None):
        if answers:
            path = tree.path / exercises.FOLDER.relative_to(ROOT) / "answers.yaml"
            path.write_text(yaml.safe_dump({f"lesson_{number}": answers}))
        return tree.run("bash", "-c", SHELL + block, timeout=900).stdout

    return typed


def test_the_course_can_be_worked_through(tree, blocks, do):
    assert "0 of 14 are right." in do(blocks[0][0])
    for name in ("ddp", "fsdp", "tensor_parallel"):
        shutil.copy(ROOT / f"examples/{name}.py", tree.path / f"examples/exercises/{name}.py")
    for number in range(1, 8):
        questions = load.read_yaml(exercises.QUESTIONS)[f"lesson_{number}"]
        answers = {name: row.get("right") for name, row in questions.items()}
        *before, last = blocks[number]
        if number == 6:
            for block in before:
                do(block)
            fault = load.read_yaml(exercises.FAULTS)["1"]
            page = (tree.path / "exercise/results/diagnosis/ddp/mlp.md").read_text()
            assert f"; cause: {fault['cause']}: " in page
            answers = fault | {"strategy": "ddp"}
            shutil.copy(ROOT / fault["file"], tree.path / "exercise" / fault["file"])
        if number == 7:  # the rest needs a cluster
            last = last.splitlines()[-1]
        output = do(last, number, answers)
        assert re.search(r"^All \d+ are right\.$", output, re.MULTILINE), output
        if number == 4:
            idle = pd.read_csv(tree.path / "results/charts/pipeline_bubble.llama2.csv").set_index("strategy").idle
            assert idle["pp_gpipe@n_microbatches=1"] >= 0.5, "with one micro-batch one rank works at a time"
        if number == 5:
            mib = (pd.read_csv(tree.path / "results/summary.csv").set_index("strategy").bytes_per_step / 2**20).round(2)
            of_text = {"single": 0, "fsdp": 1.91, "tp_sp": 5.14, "cp": 2.41, "ep": pytest.approx(1.70, abs=0.02)}
            assert mib.to_dict() == of_text


def test_a_killed_run_survives(tree, blocks, do):
    killed, resumed = blocks[8]
    do(killed)
    do(resumed.replace("shardlab lesson 8", ""))
    attempts = json.loads((tree.path / "results/fsdp/llama2/attempts.json").read_text())["attempts"]
    assert attempts[-1]["why"] == "finished"
    assert attempts[-1]["from_step"] >= 5
    assert "All 2 are right." in do("shardlab lesson 8", 8, {"from_step": attempts[-1]["from_step"], "lost_steps": 0})
