"""The checks of the course, on made-up results; its exercises and planted faults."""

import json
import re

import pandas as pd
import pytest

from helpers import course
from helpers.common import ROOT
from shardlab.course import exercises, lessons, planting
from shardlab.errors import UserError
from traindiff.formulas import CHECKS

TEXT = (ROOT / "docs/course.md").read_text()
RUNS = {
    1: {"single": {}, "example_ddp": {}, "exercise_alone": {"equality": "unequal"}},
    2: {"single": {}, "exercise_ddp": {}, "exercise_fsdp": {}, "exercise_tensor_parallel": {}},
    3: {
        "single": {},
        **{
            strategy: {
                "bytes_per_step": course.RIGHT[3][f"{strategy}_sent"],
                **{f"{kind}_bytes": course.RIGHT[3][f"{strategy}_{kind}"] for kind in course.KINDS},
            }
            for strategy in ("ddp", "fsdp", "tp", "pp")
        },
    },
    4: {"single": {}, **{f"pp_gpipe@n_microbatches={n}": {} for n in (1, 4, 16)}},
    5: {
        "single": {"weights_bytes": 144},
        "fsdp": {"bytes_per_step": 191},
        "tp_sp": {"bytes_per_step": 514},
        "cp": {"bytes_per_step": 241, "weights_bytes": 72},
        "ep": {"bytes_per_step": 170, "weights_bytes": 107},
    },
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Results of a learner who did everything; returns their folder."""
    tables = {
        number: pd.DataFrame.from_dict(
            {name: {"status": "done", "equality": "equal"} | keys for name, keys in runs.items()}, orient="index"
        )
        for number, runs in RUNS.items()
    }
    monkeypatch.setattr(lessons, "_runs", lambda number, _: tables[number])
    monkeypatch.setattr(exercises, "OPEN", "nowhere in the files")
    run = tmp_path / lessons.SURVIVOR
    run.mkdir(parents=True)
    run.with_name(f"{run.name}.done").touch()
    (run / "attempts.json").write_text(json.dumps({"attempts": [{"from_step": 0}, {"from_step": 7}]}))
    (run / "train.json").write_text(json.dumps({"lost_steps": 2}))
    return tmp_path


@pytest.fixture
def planted(tmp_path):
    """Folder of a copy with the first fault, without most of its files."""
    folder = tmp_path / "exercise"
    path = folder / planting.fault(1).file
    path.parent.mkdir(parents=True)
    path.write_text(planting.fault(1).put_into((ROOT / planting.fault(1).file).read_text()))
    (folder / planting.NUMBER).write_text("1")
    return folder


def survived():
    return course.RIGHT | {8: {"from_step": 7, "lost_steps": 2}}


@pytest.mark.parametrize("number", lessons.LESSONS)
def test_right_answers_are_right_and_each_wrong_one_is_named(number, results, planted):
    answers = survived()[number]
    assert answers.keys() == lessons.read_answers(lessons.ANSWERS, number).keys()
    found = lessons.check(number, answers, results, planted)
    wrong = {each.question for each in found if not each.right}
    assert wrong == ({"repaired"} if number == 6 else set())
    for question, right in answers.items():
        changed = answers | {question: course.wrong(right)}
        of_one = {each.question for each in lessons.check(number, changed, results, planted) if not each.right}
        assert of_one == wrong | {question}
    empty = dict.fromkeys(answers)
    assert {each.question for each in lessons.check(number, empty, results, planted) if not each.right} >= {*answers}


def test_a_prediction_counts_up_to_its_tolerance():
    def right(given):
        return lessons._predicted("sent", given, 200, "").right

    assert right(190)
    assert right(210)
    assert not right(189)
    assert not right(211)
    assert not right("200")
    assert not right(True)


def test_what_is_not_equal_or_not_trained_is_not_right(results, monkeypatch):
    table = lessons._runs(2, results)
    table.loc["exercise_ddp", "equality"] = "unequal"
    table.loc["exercise_fsdp", "status"] = "missing"
    said = [str(each) for each in lessons.check(2, course.RIGHT[2], results, results)]
    assert said[0] == "wrong  exercise_ddp: it trains, but the verdict is unequal; see results/summary.md."
    assert said[1].startswith("wrong  exercise_fsdp: the run of exercise_fsdp is missing; run: snakemake ")
    assert said[2].startswith("right")
    monkeypatch.undo()
    said = [str(each) for each in lessons.write(course.RIGHT[2], results, results)]
    assert said[0] == "wrong  exercise_ddp: examples/exercises/ddp.py has a hole, where it says NotImplemented."


def test_a_run_that_was_not_killed_is_not_right(results):
    attempts = results / lessons.SURVIVOR / "attempts.json"
    attempts.write_text(json.dumps({"attempts": [{"from_step": 0}]}))
    (said,) = lessons.check(8, survived()[8], results, results)
    assert "no attempt that was killed and resumed" in said.sentence


def test_questions_without_an_answer_may_be_missing(tmp_path, results):
    path = tmp_path / "answers.yaml"
    path.write_text("lesson_1: {world_size: 8}\nlesson_3: 5")
    found = lessons.check(1, lessons.read_answers(path, 1), results, tmp_path)
    assert [each.question for each in found if each.right] == ["world_size"]
    assert not any(each.right for each in lessons.check(7, lessons.read_answers(path, 7), results, tmp_path))
    with pytest.raises(UserError, match="lesson_3 is 5, not questions with answers"):
        lessons.read_answers(path, 3)


@pytest.mark.parametrize("name", exercises.EXERCISES)
def test_an_exercise_with_its_holes_filled_is_its_example(name):
    source, *holes = exercises.EXERCISES[name]
    made = (exercises.FOLDER / f"{name}.py").read_text()
    assert made == exercises.text(name), "make docs"
    assert (exercises.OPEN in made) == (name != "alone")
    filled = made.replace(f"examples/exercises/{name}.py", f"examples/{source}.py")
    for hole in holes:
        if hole.text:  # what was only removed has no place
            assert filled.count(hole.text) == 1
            filled = filled.replace(hole.text, hole.lines)
    expected = (ROOT / f"examples/{source}.py").read_text()
    for hole in holes:
        expected = expected if hole.text else expected.replace(hole.lines, "")
    assert filled == expected


def test_each_fault_can_be_planted_and_repaired(tmp_path):
    folder = tmp_path / "copy"
    for number, shown in enumerate(planting.FAULTS, 1):
        fault = planting.fault(number)
        row = f"| {number} | {', '.join(f'`{name}`' for name in shown.strategies)} | {shown.cause} | `{fault.file}` |"
        assert row in TEXT
        assert shown.cause in CHECKS
    before = (ROOT / planting.fault(2).file).read_text()
    planting.plant(2, folder)
    assert not planting.repaired(folder)
    assert (ROOT / planting.fault(2).file).read_text() == before
    (folder / planting.fault(2).file).write_text(before + "# a comment\n")
    assert planting.repaired(folder)
    planting.plant(1, folder)
    assert planting.number_of(folder) == 1


def test_no_other_folder_is_replaced_by_a_copy(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="exists and is no copy with a fault"):
        planting.plant(1, tmp_path)
    assert (tmp_path / "mine").exists()
    with pytest.raises(UserError, match="there is no fault 7; plant one of 1 to 6"):
        planting.plant(7, tmp_path / "copy")


def test_the_text_has_the_call_of_each_lesson_and_the_right_answers():
    for number in lessons.CALLS:
        assert f"\n{lessons.call(number)}\n" in TEXT
    for number in (1, 2, 7):
        (shown,) = re.findall(rf"`lesson_{number}`: ([^.]+)\.", TEXT)
        expected = [str(value).strip("[]") for value in course.RIGHT[number].values()]
        assert re.split(r"[,;] ", re.sub(r"[\[\]]", "", shown.replace("\n", " "))) == ", ".join(expected).split(", ")
