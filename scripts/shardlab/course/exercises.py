"""The files that a learner works on: exercises, made from examples/, a blank file of answers, a copy with a fault."""

import ast
import re
import shutil
from pathlib import Path
from typing import Any

from shardlab.errors import UserError
from shardlab.files import ROOT, write_text
from shardlab.settings import load

FOLDER = ROOT / "examples/exercises"
EXERCISES, FAULTS, QUESTIONS = (
    Path(__file__).with_name(f"{name}.yaml") for name in ("exercises", "faults", "questions")
)
HEADER = """\
# Your answers in the course (docs/course.md). `shardlab lesson N` checks those of lesson N.
# Write each answer after its colon: a number, a word, or a list such as [1, 2].
"""
COPIED = ("Snakefile", "config", "docs", "envs", "examples", "pyproject.toml", "scripts", "workflow")
NUMBER = ".planted"
"""File of the copy with the number of its fault."""


def write_missing() -> None:
    """Write the exercises and the answers, but no file that is already there."""
    texts = {f"{name}.py": exercise(name) for name in load.read_yaml(EXERCISES)} | {"answers.yaml": blank_answers()}
    for name, text in texts.items():
        if not (FOLDER / name).exists():
            write_text(FOLDER / name, text)
    if not (FOLDER / "common.py").is_symlink():
        (FOLDER / "common.py").symlink_to("../common.py")


def blank_answers() -> str:
    """Return the questions without what is right."""
    _, *lessons = re.split(r"^(?=lesson)", QUESTIONS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    blank = re.sub(r"^(  \w+):.*(\n    .*)?", r"\1:", "".join(lessons), flags=re.MULTILINE)
    return f"{HEADER}\n{blank}"


def exercise(name: str) -> str:
    """Return the text of an exercise: an example with holes."""
    made = load.read_yaml(EXERCISES)[name]
    source = f"examples/{made['example']}.py"
    text = (ROOT / source).read_text(encoding="utf-8").replace(source, f"examples/exercises/{name}.py")
    for change in made["changes"]:
        lines = [f"# {line}" for line in change.get("hint", "").splitlines()]
        hole = f'raise NotImplementedError("{lines[0][2:8].lower()}")' if lines else ""
        new = [*lines, *[change.get("code", hole)] * bool(lines or "code" in change)]
        last = rf"(?:.*\n)*? *{re.escape(change['last'])}" if "last" in change else ""
        place = re.compile(rf"^( *){re.escape(change['first'])}{last}.*\n", re.MULTILINE)
        text = place.sub("".join(f"\\g<1>{line}\n" for line in new), text)
    return text


def plant(number: int, copy: Path) -> None:
    """Copy the project and put a fault into the copy.

    Raises:
        UserError: the folder of the copy has something else.
    """
    fault = load.read_yaml(FAULTS)[str(number)]
    if copy.exists() and not (copy / NUMBER).exists():
        raise UserError(f"{copy} exists and is no copy with a fault; move it away.")
    shutil.rmtree(copy, ignore_errors=True)
    others = {path.name for path in ROOT.iterdir()} - {*COPIED}
    shutil.copytree(
        ROOT, copy, symlinks=True, ignore=lambda place, _: others if Path(place) == ROOT else {"__pycache__"}
    )
    text = (ROOT / fault["file"]).read_text(encoding="utf-8")
    write_text(copy / fault["file"], text.replace(fault["right"], fault["wrong"]))
    write_text(copy / NUMBER, f"{number}\n")


def planted(copy: Path) -> dict[str, Any]:
    """Return the fault of a copy.

    Raises:
        UserError: the folder is no copy.
    """
    if not (copy / NUMBER).exists():
        raise UserError(f"{copy} is no copy with a fault; make one with: shardlab lesson 6 --plant 1.")
    return dict(load.read_yaml(FAULTS)[(copy / NUMBER).read_text(encoding="utf-8").strip()])


def repaired(copy: Path) -> bool:
    """Return whether the file with the fault is again that of the project, but for comments and layout."""
    try:
        ours, theirs = (
            ast.dump(ast.parse((where / planted(copy)["file"]).read_text(encoding="utf-8"))) for where in (ROOT, copy)
        )
    except SyntaxError:
        return False
    return ours == theirs
