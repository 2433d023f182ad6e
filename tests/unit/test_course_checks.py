"""The course: its exercises and its faults fit the code that they are made from."""

import course

from helpers.common import ROOT
from traindiff.formulas import CHECKS


def test_each_fault_fits_and_the_page_names_it():
    answers = (ROOT / "docs/course.md").read_text()
    for number, fault in course.COURSE["faults"].items():
        assert fault["cause"] in CHECKS
        before = (ROOT / fault["file"]).read_text()
        assert before.count(fault["right"]) == 1
        compile(before.replace(fault["right"], fault["wrong"]), fault["file"], "exec")
        strategies = ", ".join(f"`{name}`" for name in fault["strategy"])
        assert f"| {number} | {strategies} | {fault['cause']} | `{fault['file']}` |" in answers
