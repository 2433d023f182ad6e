"""Documents: each strategy has a page with figures, and every link and path exists."""

import re
from typing import get_args

import pytest
from pydantic import BaseModel

import docs
from helpers.common import ROOT
from shardlab.settings import load, resolve, sites, types

DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ["scripts", "config", "tests", "docs", "workflow", "envs"]
FOLDERS += [path.name for path in (ROOT / "scripts/shardlab").iterdir() if path.is_dir()]
DOCS += [ROOT / "config/README.md", ROOT / "results/README.md", ROOT / "scripts/traindiff/README.md"]


def test_each_strategy_has_one_page_with_its_figures():
    found = docs.all_pages()
    named = [name for page in found for name in docs.strategies_of(page)]
    assert sorted([*named, "single"]) == sorted(load.config({"strategies": ["all"]}).strategies), (
        "a page in docs/strategies names each strategy after `Strategies:`"
    )
    for page in found:
        rows = [
            line.split("`")[1]
            for line in docs.between(page.read_text(), "figures").splitlines()
            if line.startswith("| `")
        ]
        assert rows == ["single", *docs.strategies_of(page)]
        index = (page.parent / "README.md").read_text()
        assert f"]({page.name}) | {', '.join(f'`{name}`' for name in docs.strategies_of(page))} |" in index


def test_every_class_of_settings_has_its_list_of_keys():
    def parts(kind):
        """The classes of settings in a type: also in its unions and dictionaries."""
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return {kind}.union(*(parts(field.annotation) for field in kind.model_fields.values()))
        return {part for each in get_args(kind) for part in parts(each)}

    listed = {*docs.LISTS.values(), *docs.SITE_GROUPS.values(), sites.Site}
    used = set().union(*map(parts, (*docs.SCHEMAS.values(), types.Strategy)))
    assert {each.__name__ for each in used - listed} == set()


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        assert link.startswith("https://") or (path.parent / link).exists(), link
    for name, test in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.]+\.\w+)(?:::(\w+))?`", path.read_text()):
        places = (ROOT / name, ROOT / "scripts/shardlab" / name)
        assert any(place.exists() for place in places) or "NAME" in name, name
        assert not test or f"def {test}(" in (ROOT / name).read_text(), f"{name}::{test}"


def test_each_topic_of_the_sources_names_a_test():
    text = (ROOT / "docs/evidence.md").read_text().partition("\n## Teaching sources\n")[2].partition("\n## ")[0]
    rows = [" ".join(row.split()) for row in re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)]
    assert len(rows) > 20
    assert not [row for row in rows if not re.fullmatch(r"- .+: `[\w/.]+::\w+`", row)]


def test_numbers_of_runs_in_running_text_are_those_of_the_configuration():
    every = [name for name in load.config({"strategies": ["all"]}).strategies if name != "single"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    config = load.config({})
    runs = len(resolve.matrix(config)[0])
    assert f"under {len(every)} parallel strategies" in readme
    matrix = f"{len(config.strategies)} strategies on up to {len(config.workloads)} workloads (a model and its data)"
    assert f"{matrix}, {runs} runs:" in readme
