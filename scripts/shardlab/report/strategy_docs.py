"""The pages of docs/strategies: which strategies each is about, and its text for the report."""

import re
from pathlib import Path

from markdown_it import MarkdownIt

from shardlab.files import ROOT
from shardlab.settings import variants

FIGURES = "<!-- figures -->"
ELSEWHERE = re.compile(r"\[([^\]]+)\]\((?!http)[^)]*\)")
"""Links to other pages, which do not work in the report."""


def all_pages() -> list[Path]:
    return [path for path in sorted((ROOT / "docs/strategies").glob("*.md")) if path.name != "README.md"]


def strategies_of(page: Path) -> list[str]:
    (line,) = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("Strategies: ")]
    return line.split("`")[1::2]


def explained(strategy: str) -> str:
    """Return the page of a strategy (for a variant, of its base) as HTML; empty without one."""
    page = next((page for page in all_pages() if variants.base(strategy) in strategies_of(page)), None)
    if page is None:
        return ""
    text = page.read_text(encoding="utf-8").partition("Strategies: ")[2].partition("\n")[2].partition(FIGURES)[0]
    return str(MarkdownIt("commonmark", {"html": False}).render(ELSEWHERE.sub(r"\1", text)))
