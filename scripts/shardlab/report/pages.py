"""The pages of docs/strategies: which strategies each is about, and its text for the report."""

import re
from pathlib import Path

from markdown_it import MarkdownIt

from shardlab.files import ROOT
from shardlab.settings import variants

FIGURES = "<!-- figures -->"
ELSEWHERE = re.compile(r"\[([^\]]+)\]\((?!http)[^)]*\)")
"""Links to other pages, which are not where the report is."""


def all_pages() -> list[Path]:
    """The pages that say which strategies they are about."""
    return [path for path in sorted((ROOT / "docs/strategies").glob("*.md")) if path.name != "README.md"]


def strategies_of(page: Path) -> list[str]:
    """The strategies that a page is about."""
    (line,) = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("Strategies: ")]
    return line.split("`")[1::2]


def explained(strategy: str) -> str:
    """What the page of a strategy, or of that which it is a variant of, says, as HTML; nothing without a page."""
    page = next((page for page in all_pages() if variants.base(strategy) in strategies_of(page)), None)
    if page is None:
        return ""
    text = page.read_text(encoding="utf-8").partition("Strategies: ")[2].partition("\n")[2].partition(FIGURES)[0]
    return str(MarkdownIt("commonmark", {"html": False}).render(ELSEWHERE.sub(r"\1", text)))
