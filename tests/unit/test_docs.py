"""Documents: each strategy has a page with figures, every link and path exists, the course's faults fit the code."""

import re

import course
import pytest

import docs
from helpers.common import ROOT
from shardlab.settings import load
from traindiff.formulas import CHECKS

DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ["scripts", "config", "tests", "docs", "workflow", "envs"]
FOLDERS += [path.name for path in (ROOT / "scripts/shardlab").iterdir() if path.is_dir()]
DOCS += [ROOT / "config/README.md", ROOT / "results/README.md", ROOT / "scripts/traindiff/README.md"]


def test_each_strategy_has_one_page():
    found = docs.all_pages()
    named = [name for page in found for name in docs.strategies_of(page)]
    assert sorted([*named, "single"]) == sorted(load.config({"strategies": ["all"]}).strategies), (
        "a page in docs/strategies names each strategy after `Strategies:`"
    )


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        assert link.startswith("https://") or (path.parent / link).exists(), link
    for name, test in re.findall(
        rf"`((?:{'|'.join(FOLDERS)})/[\w/.]+\.\w+)(?:::(\w+)(?:\[.+?\])?)?`", path.read_text()
    ):
        places = (ROOT / name, ROOT / "scripts/shardlab" / name)
        assert any(place.exists() for place in places) or "NAME" in name, name
        assert not test or f"def {test}(" in (ROOT / name).read_text(), f"{name}::{test}"


def test_each_fault_of_the_course_fits_and_the_page_names_it():
    answers = (ROOT / "docs/course.md").read_text()
    for number, fault in course.COURSE["faults"].items():
        assert fault["cause"] in CHECKS
        before = (ROOT / fault["file"]).read_text()
        assert before.count(fault["right"]) == 1
        compile(before.replace(fault["right"], fault["wrong"]), fault["file"], "exec")
        strategies = ", ".join(f"`{name}`" for name in fault["strategy"])
        assert f"| {number} | {strategies} | {fault['cause']} | `{fault['file']}` |" in answers
