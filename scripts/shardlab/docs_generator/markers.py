"""Generated parts of a page, between ``<!-- name -->`` and ``<!-- end name -->``."""

from pathlib import Path

from shardlab.errors import UserError


def fill(path: Path, blocks: dict[str, str]) -> str:
    """Return the file with each block put between its markers."""
    text = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
        if start not in text or end not in text:
            raise UserError(f"{path}: the markers {start.strip()} and {end} are missing; add them.")
        before, rest = text.split(start, 1)
        text = before + start + block + "\n" + end + rest.split(end, 1)[1]
    return text


def between(path: Path, name: str) -> str:
    """Return the text between a file's markers of that name."""
    return block(path.read_text(encoding="utf-8"), name)


def block(text: str, name: str) -> str:
    """Return the text between a text's markers of that name."""
    return text.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- end {name} -->")[0]
