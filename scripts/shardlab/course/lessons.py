"""The checks of the course's lessons: what a learner answered, by what is right and by what the runs left."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from shardlab.course import exercises
from shardlab.errors import UserError
from shardlab.files import ROOT, read_json
from shardlab.report import summary, verdict
from shardlab.settings import load

PREDICTED, ROUNDED = 0.05, 0.01
"""Largest relative difference of a prediction from what was measured, and of an answer in digits."""


def check(number: int, answers: dict[str, Any], results: Path, copy: Path) -> Iterator[tuple[str, bool, str]]:
    """Yield each question of a lesson, whether it is answered right, and a sentence. ``copy``: the one with a fault.

    Raises:
        UserError: there is no copy to repair, or no run that was killed.
    """
    known: dict[str, Any] = {}
    table = judged(number, results) if number <= 5 else pd.DataFrame()
    if number == 2:
        for strategy in table.index.drop("single"):
            reason, equality = _unfinished(strategy, table), table.equality[strategy]
            yield strategy, not reason and equality == verdict.EQUAL, reason or f"the verdict is {equality}."
    elif number == 6:
        known = exercises.planted(copy)
        repaired = exercises.repaired(copy)
        yield "repaired", repaired, f"the fault is {'gone from' if repaired else 'still in'} {copy}."
    elif number == 8:
        known = _survived(results / "fsdp/llama2")
    for question, row in load.read_yaml(exercises.QUESTIONS)[f"lesson_{number}"].items():
        if (given := answers.get(question)) is None:
            yield question, False, "not answered yet."
        elif "of" in row and (reason := _unfinished(row["of"], table)):
            yield question, False, reason
        elif "measured" not in row:
            expected = known.get(question, row.get("right"))
            right = _same(given, expected, ROUNDED if isinstance(expected, float) else 0)
            yield question, right, f"{given}." if right else f"not {given}. {row['hint']}"
        else:
            column: Any = table[row["measured"]]
            measured = column[row["of"]]
            if not isinstance(measured, str):
                measured = float(measured) / (float(column["single"]) if row.get("share") else 1)
            yield question, _same(given, measured, PREDICTED), f"{given}, measured: {measured}."


def judged(number: int, results: Path) -> pd.DataFrame:
    """Return the judged table, by strategy, of the call of Snakemake that docs/course.md shows in a lesson."""
    text = (ROOT / "docs/course.md").read_text(encoding="utf-8").split("\n## ")[number]
    (call,) = re.findall(r"^snakemake .* --config (.*) -- ", text, re.MULTILINE)
    config = load.config(load.called_with(shlex.split(call)))
    return summary.judged(config, results)[0].set_index("strategy")


def _unfinished(strategy: str, table: pd.DataFrame) -> str:
    """Return why a run cannot be looked at, or nothing."""
    for name in ("single", strategy):
        if (status := table.status[name]) != "done":
            return f"the run of {name} is {status}; make the call of the lesson."
    return ""


def _survived(run: Path) -> dict[str, int]:
    """Return what is right of a run that was killed and resumed."""
    attempts = read_json(run / "attempts.json", "attempts at the run", "train as the lesson says")["attempts"]
    if not run.with_name(f"{run.name}.done").exists() or not attempts[-1]["from_step"]:
        raise UserError(f"{run} was not killed, resumed and finished; repeat the lesson.")
    report = read_json(run / "train.json", "report of the run", "train as the lesson says")
    return {"from_step": attempts[-1]["from_step"], "lost_steps": report["lost_steps"]}


def _same(given: Any, right: Any, near: float) -> bool:
    """Compare an answer: a count is exact, another number relative to ``near``, a word by its letters, or as one of
    several words.
    """
    if isinstance(right, int | float):
        number = isinstance(given, int | float) and not isinstance(given, bool)
        return number and abs(given - right) <= near * abs(right)
    if isinstance(right, list) and not isinstance(right[0], str):
        return bool(given == right)
    words = [right] if isinstance(right, str) else right
    return re.sub("[- ]", "_", str(given).strip().lower()) in [re.sub("[- ]", "_", word) for word in words]
