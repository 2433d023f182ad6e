"""What docs say of the strategies: each has its page, with figures, and every link leads somewhere."""

import re

import pandas as pd
import pytest

import docs
from helpers.common import ROOT
from shardlab.report import pages
from shardlab.settings import load

DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("scripts", "strategies", "settings", "launch", "report", "training", "config", "tests", "docs")
DOCS += [ROOT / "config/README.md", ROOT / "results/README.md"]


def test_each_strategy_has_one_page_with_its_figures():
    found = pages.all_pages()
    named = [name for page in found for name in pages.strategies_of(page)]
    assert sorted([*named, "single"]) == sorted(load.config({"strategies": ["all"]}).strategies)
    for page in found:
        rows = [line.split("`")[1] for line in docs.between(page, "figures").splitlines() if line.startswith("| `")]
        assert rows == ["single", *pages.strategies_of(page)]
        index = (page.parent / "README.md").read_text()
        assert f"]({page.name}) | {', '.join(f'`{name}`' for name in pages.strategies_of(page))} |" in index


def test_figures_come_from_the_summary():
    page = next(page for page in pages.all_pages() if page.name == "data-parallel.md")
    columns = [f"{kind}_bytes" for kind in docs.SHOWN] + ["tensor_bytes", "bytes_per_step"]
    table = pd.DataFrame({"strategy": ["ddp", "single", "dp"], "workload": "llama2", "world_size": [2.0, 1.0, 1.0]})
    table = table.assign(**dict.fromkeys(columns, 2**19))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in docs.figures(page, table).splitlines()]
    assert rows[0] == ["strategy", "ranks", *docs.SHOWN, "all tensors", "sent"]
    assert rows[2:] == [
        [f"`{name}`", ranks, *["0.50"] * 6] for name, ranks in (("single", "1"), ("dp", "1"), ("ddp", "2"))
    ]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        assert link.startswith("https://") or (path.parent / link).exists(), link
    for name in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.]+\.\w+)`", path.read_text()):
        places = (ROOT / name, ROOT / "scripts/shardlab" / name)
        assert any(place.exists() for place in places) or "NAME" in name, name
