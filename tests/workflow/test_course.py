"""The course, worked through: every command, by a learner who is right and by one who is wrong."""

import json
import re
import shutil

import pandas as pd
import pytest
import yaml

from helpers import course
from helpers.common import ROOT
from helpers.course import RIGHT, wrong
from shardlab.course import lessons, planting

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
SHORTER = {'"max_steps": 400': '"max_steps": 60', "max_steps: 400": "max_steps: 60"}
"""What a reader types, and what shows as much of it in less time."""
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
    for shown, fewer in SHORTER.items():
        assert shown in text
        text = text.replace(shown, fewer)
    found = {0: []}
    for number, block in re.findall(r"^## (\d)|^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if number:
            found[int(number)] = []
        else:
            found[max(found)].append(block)
    assert [*found] == [0, *lessons.LESSONS]
    return found


@pytest.fixture
def do(tree, blocks):
    """Function that answers a lesson and types what it shows; returns what it printed."""

    def typed(number, answers, *, check=True):
        path = tree.path / lessons.ANSWERS.relative_to(ROOT)
        path.write_text(yaml.safe_dump({f"lesson_{number}": answers}))
        runs = (tree.run("bash", "-c", SHELL + block, timeout=900, check=check) for block in blocks[number])
        return "".join(done.stdout for done in runs)

    return typed


def said(tree, number, answers):
    """Sentences about other answers, of which one is wrong at least."""
    (tree.path / "others.yaml").write_text(yaml.safe_dump({f"lesson_{number}": answers}))
    done = tree.run("python", "scripts/shardlab", "lesson", str(number), "--answers", "others.yaml", check=False)
    assert done.returncode == 1
    return {line.split()[1].rstrip(":"): line for line in done.stdout.splitlines() if line.startswith("wrong ")}


def test_the_course_can_be_worked_through(tree, blocks, do):
    for block in blocks[0]:
        assert "0 of 14 are right." in tree.run("bash", "-c", SHELL + block).stdout
    for number, answers in RIGHT.items():
        if number == 2:
            fill(tree, mistaken=True)
            assert do(number, answers, check=False).endswith("3 of 4 are right.\n")
            assert said(tree, number, answers).keys() == {"exercise_ddp"}
            fill(tree, mistaken=False)
        if number == 6:
            (planting_block, diagnosing, checking) = blocks[6]
            blocks[6] = [planting_block, diagnosing]
            do(number, answers)
            page = (tree.path / "exercise/results/diagnosis/ddp/mlp.md").read_text()
            assert f"; cause: {RIGHT[6]['cause']}: " in page
            assert said(tree, number, answers).keys() == {"repaired"}
            shutil.copy(ROOT / planting.fault(1).file, tree.path / "exercise" / planting.fault(1).file)
            blocks[6] = [checking]
        if number == 7:  # the rest needs a cluster
            *_, last = blocks[7][-1].splitlines()
            assert last == "shardlab lesson 7"
            blocks[7] = [last]
        output = do(number, answers)
        assert re.search(r"^All \d+ are right\.$", output, re.MULTILINE), output
        assert said(tree, number, {name: wrong(answer) for name, answer in answers.items()}).keys() == answers.keys()
        if number == 4:
            idle = pd.read_csv(tree.path / "results/charts/pipeline_bubble.llama2.csv").set_index("strategy").idle
            assert idle["pp_gpipe@n_microbatches=1"] >= 0.5, "with one micro-batch one rank works at a time"
        if number == 5:
            mib = (pd.read_csv(tree.path / "results/summary.csv").set_index("strategy").bytes_per_step / 2**20).round(2)
            of_text = {"single": 0, "fsdp": 1.91, "tp_sp": 5.14, "cp": 2.41, "ep": pytest.approx(1.70, abs=0.02)}
            assert mib.to_dict() == of_text


def fill(tree, *, mistaken):
    """Fill the holes, with one mistake or none."""
    for name in ("ddp", "fsdp", "tensor_parallel"):
        text = (ROOT / f"examples/{name}.py").read_text()
        if mistaken and name == "ddp":
            assert "(loss * ranks).backward()" in text
            text = text.replace("(loss * ranks).backward()", "loss.backward()")
        (tree.path / f"examples/exercises/{name}.py").write_text(text)


def test_a_killed_run_survives(tree, blocks, do):
    first, second = blocks[8]
    blocks[8] = [first]
    do(8, {})
    blocks[8] = [second]
    do(8, {}, check=False)
    attempts = json.loads((tree.path / "results" / lessons.SURVIVOR / "attempts.json").read_text())["attempts"]
    assert attempts[-1]["why"] == "finished"
    right = {"from_step": attempts[-1]["from_step"], "lost_steps": 0}
    assert right["from_step"] >= 5
    assert said(tree, 8, {name: course.wrong(answer) for name, answer in right.items()}).keys() == right.keys()
    assert "All 3 are right." in do(8, right)
