"""The course: right and wrong answers, its exercises, its faults."""

import json
import re

import pandas as pd
import pytest

from helpers.common import ROOT
from shardlab.course import exercises, lessons
from shardlab.errors import UserError
from shardlab.settings import load
from traindiff.formulas import CHECKS

QUESTIONS = {int(name[-1]): rows for name, rows in load.read_yaml(exercises.QUESTIONS).items()}
FAULTS = load.read_yaml(exercises.FAULTS)
WRONG = (None, "broadcast", [9, 1], 9.5, True)


@pytest.fixture
def table(monkeypatch):
    """The runs of all lessons, done, equal and as the questions say."""
    rows = [row for each in QUESTIONS.values() for row in each.values() if "of" in row]
    runs = dict.fromkeys(["single", *(row["of"] for row in rows)])
    table = pd.DataFrame({"status": "done", "equality": "equal", "weights_bytes": 1.0}, index=[*runs])
    for row in rows:
        if "measured" in row:
            table.loc[row["of"], row["measured"]] = row["right"]
    monkeypatch.setattr(lessons, "judged", lambda *_: table)
    return table


def wrong(number, answers, results=ROOT):
    """What is said of a lesson, by question, but of those that are right."""
    found = lessons.check(number, answers, results, results / "copy")
    return {question: sentence for question, right, sentence in found if not right}


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7])
def test_right_answers_are_right_and_each_wrong_one_is_named(table, number):
    unequal = {"exercise_alone"} if number == 2 else set()
    answers = {question: row["right"] for question, row in QUESTIONS[number].items()}
    assert wrong(number, answers).keys() == unequal
    for question in answers:
        for other in WRONG:
            assert wrong(number, answers | {question: other}).keys() == {*unequal, question}


def test_runs_decide_what_is_right(table):
    answers = {question: row["right"] for question, row in QUESTIONS[3].items()}
    table.loc["ddp", "bytes_per_step"] = 200
    for given, right in ((190, True), (210, True), (189, False), (211, False), ("200", False)):
        assert ("ddp_sent" not in wrong(3, answers | {"ddp_sent": given})) == right
    table.loc["ddp", ["status", "equality"]] = "stale", "unequal"
    assert wrong(3, answers)["ddp_sent"] == "the run of ddp is stale; make the call of the lesson."
    table.loc["ddp", "status"] = "done"
    assert wrong(2, {"tp_hidden_weight": [2, 6]}) == {
        "ddp": "the verdict is unequal.",
        "exercise_alone": "the verdict is unequal.",
    }


def test_only_a_run_that_was_killed_resumed_and_finished_is_right(tmp_path):
    run = tmp_path / "fsdp/llama2"
    run.mkdir(parents=True)
    (run / "train.json").write_text(json.dumps({"lost_steps": 0}))
    run.with_name("llama2.done").touch()
    for steps in ([0], [0, 300]):
        (run / "attempts.json").write_text(json.dumps({"attempts": [{"from_step": step} for step in steps]}))
        if len(steps) == 1:
            with pytest.raises(UserError, match="was not killed, resumed and finished"):
                wrong(8, {}, tmp_path)
    assert wrong(8, {"from_step": 300, "lost_steps": 0}, tmp_path) == {}
    assert wrong(8, {"from_step": 301, "lost_steps": 1}, tmp_path).keys() == {"from_step", "lost_steps"}


@pytest.mark.parametrize(("name", "holes"), [("alone", 0), ("ddp", 4), ("fsdp", 3), ("tensor_parallel", 3)])
def test_an_exercise_is_its_example_with_holes(name, holes):
    text = exercises.exercise(name)
    compile(text, name, "exec")
    assert [*map(int, re.findall(r"# Hole (\d)", text))] == [*range(1, holes + 1)]
    assert text.count("NotImplemented") == holes
    for change in load.read_yaml(exercises.EXERCISES)[name]["changes"]:
        for line in (change["first"], change.get("last", change["first"])):
            assert line not in text.replace(change.get("code", "nothing"), "")


def test_files_are_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr(exercises, "FOLDER", tmp_path)
    (tmp_path / "ddp.py").write_text("mine")
    exercises.write_missing()
    exercises.write_missing()
    assert (tmp_path / "ddp.py").read_text() == "mine"
    assert load.read_yaml(tmp_path / "answers.yaml").keys() == load.read_yaml(exercises.QUESTIONS).keys()


def test_each_fault_can_be_planted_and_repaired(tmp_path):
    for fault in FAULTS.values():
        assert fault["cause"] in CHECKS
        before = (ROOT / fault["file"]).read_text()
        assert before.count(fault["right"]) == 1
        compile(before.replace(fault["right"], fault["wrong"]), fault["file"], "exec")
    exercises.plant(4, tmp_path / "copy")
    answers = {name: FAULTS["4"][name] for name in QUESTIONS[6]} | {"strategy": "FSDP"}
    assert wrong(6, answers, tmp_path).keys() == {"repaired"}
    assert wrong(6, dict.fromkeys(answers, "pp"), tmp_path).keys() == {"repaired", *answers}
    (tmp_path / "copy" / answers["file"]).write_text((ROOT / answers["file"]).read_text() + "# a comment\n")
    assert wrong(6, answers, tmp_path) == {}
    with pytest.raises(UserError, match="exists and is no copy with a fault"):
        exercises.plant(1, tmp_path)
