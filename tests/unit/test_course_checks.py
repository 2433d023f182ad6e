"""The course: its exercises and its faults fit the code that they are made from."""

import re

import course
import pytest

from helpers.common import ROOT
from traindiff.formulas import CHECKS


@pytest.mark.parametrize(("name", "holes"), [("alone", 0), ("ddp", 4), ("fsdp", 3), ("tensor_parallel", 3)])
def test_an_exercise_is_its_example_with_holes(name, holes):
    text = course.exercise(name)
    compile(text, name, "exec")
    assert [*map(int, re.findall(r"# Hole (\d)", text))] == [*range(1, holes + 1)]
    assert text.count("NotImplemented") == holes
    for change in course.COURSE["exercises"][name]["changes"]:
        for line in (change["first"], change.get("last", change["first"])):
            assert line not in text.replace(change.get("code", "nothing"), "")


def test_each_fault_fits_and_the_page_names_it():
    answers = (ROOT / "docs/course.md").read_text()
    for number, fault in course.COURSE["faults"].items():
        assert fault["cause"] in CHECKS
        before = (ROOT / fault["file"]).read_text()
        assert before.count(fault["right"]) == 1
        compile(before.replace(fault["right"], fault["wrong"]), fault["file"], "exec")
        strategies = ", ".join(f"`{name}`" for name in fault["strategy"])
        assert f"| {number} | {strategies} | {fault['cause']} | `{fault['file']}` |" in answers
