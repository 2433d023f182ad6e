"""Whether runs are equal to one device, and how equal can be expected of float32. Imports no torch."""

from typing import Any

import pandas as pd

TOLERANCES = {"float32": 1e-4, "float64": 1e-10}
"""Arithmetic: largest relative difference of a loss to that of ``single`` that counts as equal."""
MULTIPLE = 10.0
"""A run may end so many times as far from ``single`` as its farthest twin (docs/equality.md says why)."""
NAMED = 40
"""Runs that a sentence names; of a sweep there may be thousands."""
DIFFERENCES = ("rel_diff", "validation_rel_diff")
EQUAL, ROUNDING, UNEQUAL = "equal", "rounding", "unequal"
SETTLES = "--config dtype=float64 settles it"


def judge(table: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """The table with the column ``equality`` filled in, for runs that are done and have a ``single`` to be held to.

    equal: test and validation loss within the tolerance of ``single``'s, or, where its twins stay within the
    tolerance, within MULTIPLE times their spread. rounding: not distinguishable from it: the twins themselves end
    farther apart than the tolerance, and the run within MULTIPLE times that. unequal: neither.
    """
    table["equality"] = pd.array(
        [
            _worst(row, tolerance) if row["status"] == "done" and not pd.isna(row["rel_diff"]) else pd.NA
            for row in table.to_dict("records")
        ],
        dtype="string",
    )
    return table


def _worst(row: dict[Any, Any], tolerance: float) -> str:
    away = max(row[difference] for difference in DIFFERENCES if not pd.isna(row[difference]))
    apart = 0.0 if pd.isna(row["spread"]) else row["spread"]
    if away <= tolerance:
        return EQUAL
    if away <= MULTIPLE * apart:
        return EQUAL if apart <= tolerance else ROUNDING
    return UNEQUAL


def verdict(table: pd.DataFrame, tolerance: float) -> tuple[bool, str]:
    """Whether every run is done and none unequal, and one sentence that says so or names the others."""
    done = table[table.status == "done"]
    wrong = {
        f"not within {tolerance:g} of single": _names(done[done.equality == UNEQUAL], differences=True),
        "without a finished single to compare with": _names(done[done.rel_diff.isna()]),
        "not finished": _names(table[table.status != "done"], status=True),
    }
    equal = done[done.equality == EQUAL]
    beyond = equal[equal[[*DIFFERENCES]].max(axis=1) > tolerance]
    near = {
        f"as near as {MULTIPLE:g} times the farthest twin": _names(beyond, differences=True),
        f"not distinguishable from rounding ({SETTLES})": _names(done[done.equality == ROUNDING], differences=True),
    }
    if not any(wrong.values()):
        within = len(table) - sum(map(len, near.values()))
        if within == len(table):
            every = f"All {within} runs are" if within > 1 else "The only run is"
            return True, f"{every} within {tolerance:g} of single."
        return True, f"Of {len(table)} runs, {within} within {tolerance:g} of single; {'; '.join(_counted(near))}."
    return False, f"Of {len(table)} runs, {'; '.join(_counted(wrong | near))}."


def _counted(groups: dict[str, list[str]]) -> list[str]:
    return [f"{len(names)} {what}: {_listed(names)}" for what, names in groups.items() if names]


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:NAMED])} and {more:,} more"


def _names(rows: pd.DataFrame, *, status: bool = False, differences: bool = False) -> list[str]:
    """Runs by name, with their status, or how far they and the twins are from ``single``, behind each."""
    names = []
    for row in rows.to_dict("records"):
        more = f" ({row['status']})" if status else ""
        if differences:
            difference = max(DIFFERENCES, key=lambda column: -1.0 if pd.isna(row[column]) else row[column])
            what = "" if difference == "rel_diff" else "validation "
            twins = "" if pd.isna(row["spread"]) else f", twins {row['spread']:.1e}"
            more = f" ({what}{row[difference]:.1e}{twins})"
        names.append(f"{row['strategy']} x {row['workload']}{more}")
    return names
