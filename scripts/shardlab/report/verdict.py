"""The verdict: runs that are equal to one device, and how equal float32 and low precision can be."""

from typing import Any

import pandas as pd

from shardlab.records.reports import FIRST_STEPS

MULTIPLE = 10.0
"""Maximum distance from ``single``, as a multiple of its farthest twin's (see docs/equality.md for the reason)."""
LOW_MULTIPLE = 3.0
"""The same for the losses and gradient norms of low precision, which are judged by nothing else."""
LOW_NOISE = 1e-2
"""Maximum distance of twins in low precision from ``single`` at which a run can be called equal."""
ROUNDED = 0.5
"""Maximum share of a run's changed weights that low precision represents exactly, beyond those of ``single``."""
NAMED = 5
"""Maximum runs named in a sentence: the matrix marks all, and a sweep may have thousands."""
DIFFERENCES = {"rel_diff": "", "validation_rel_diff": "validation ", "ema_rel_diff": "average "}
"""Columns with differences of final losses, and what is said before them."""
EQUAL, ROUNDING, UNEQUAL, SUSPICIOUS, REPORTED = "equal", "rounding", "unequal", "suspicious", "reported"
SETTLES = "--config dtype=float64 settles it"
SETTLES_LOW = "recipe.precision full tells more"


def relative(value: float, reference: float) -> float:
    """Return the difference relative to the reference's size; the difference itself if that is 0."""
    return abs(value - reference) / (abs(reference) or 1.0)


def judge(table: pd.DataFrame) -> pd.DataFrame:
    """Fill in the column ``equality`` for runs that are done and have a ``single`` to compare with.

    suspicious: the run learned nothing, so equality is meaningless.
    unequal: the first steps or a weight are not within their tolerance, or the final losses are neither equal nor
    rounding. equal: test and validation loss are within the row's tolerance, or within MULTIPLE times the twins' spread
    if the twins are within the tolerance. rounding: the twins themselves end farther apart than the tolerance, and the
    run is within MULTIPLE times that; or the weights of a model with experts are not within their tolerance: one token
    that rounding sends to another expert moves them by any amount, and need not do so in a twin.

    Low precision has no tolerance but the twins. equal: losses and gradient norms of the first steps, and final losses,
    are within LOW_MULTIPLE times the farthest twin, weights within MULTIPLE times, and no twin ends farther than
    LOW_NOISE from ``single``.
    rounding: the same, but twins do. unequal: anything is farther, or the weights themselves are rounded. reported:
    there are no twins to judge by, or the weights of a model with experts are farther.
    """
    judged = table.status.eq("done") & table.rel_diff.notna()
    table["equality"] = pd.array(
        [_judge(row) if is_judged else pd.NA for row, is_judged in zip(table.to_dict("records"), judged, strict=True)],
        dtype="string",
    )
    return table


def _judge(row: dict[Any, Any]) -> str:
    beyond = _weights_differ(row)
    if beyond and row["weights_tolerance"] == 0:
        return UNEQUAL
    if not pd.isna(row["learned_nothing"]):
        return SUSPICIOUS
    if pd.isna(row["tolerance"]):
        return _judge_low_precision(row, beyond=beyond)
    if _starts_differ(row):
        return UNEQUAL
    losses_verdict = _judge_final_losses(row)
    if not beyond or losses_verdict == UNEQUAL:
        return losses_verdict
    return UNEQUAL if pd.isna(row["expert_choices"]) else ROUNDING


def _judge_low_precision(row: dict[Any, Any], *, beyond: bool) -> str:
    if row["strategy"] == "single":
        return EQUAL
    if not pd.isna(row["rounded_weights"]):
        return UNEQUAL
    if pd.isna(row["noise_floor"]):
        return REPORTED
    if _starts_differ(row) or _ends_differ(row):
        return UNEQUAL
    if beyond:
        return UNEQUAL if pd.isna(row["expert_choices"]) else REPORTED
    return EQUAL if row["noise_floor"] <= LOW_NOISE else ROUNDING


def _end_difference(row: dict[Any, Any]) -> float:
    return max(float(row[column]) for column in DIFFERENCES if not pd.isna(row[column]))


def _judge_final_losses(row: dict[Any, Any]) -> str:
    difference = _end_difference(row)
    noise = 0.0 if pd.isna(row["noise_floor"]) else row["noise_floor"]
    if difference <= row["tolerance"]:
        return EQUAL
    if difference <= MULTIPLE * noise:
        return EQUAL if noise <= row["tolerance"] else ROUNDING
    return UNEQUAL


def _starts_differ(row: dict[Any, Any]) -> bool:
    known = not (pd.isna(row["first_rel_diff"]) or pd.isna(row["first_tolerance"]))
    return bool(known and row["first_rel_diff"] > row["first_tolerance"])


def _weights_differ(row: dict[Any, Any]) -> bool:
    return bool(not pd.isna(row["weights_tolerance"]) and row["weights_rel_diff"] > row["weights_tolerance"])


def verdict(table: pd.DataFrame) -> tuple[bool, str]:
    """Return True if every run is done and none is unequal or suspicious, and a sentence that names the others."""
    done = table[table.status == "done"]
    parts: dict[str, list[str]] = {}
    unequal = done[done.equality == UNEQUAL]
    parts["not equal to single"] = _names(unequal, _reason)
    parts["suspicious"] = _names(done[done.equality == SUSPICIOUS], lambda row: row["learned_nothing"])
    parts["without a finished single to compare with"] = _names(done[done.rel_diff.isna()], lambda row: "")
    parts["not finished"] = _names(table[table.status != "done"], lambda row: row["status"])
    good = not any(parts.values())
    rounding, reported = done[done.equality == ROUNDING], done[done.equality == REPORTED]
    low, alone = rounding.tolerance.isna(), reported.noise_floor.isna()
    parts[f"not distinguishable from rounding ({SETTLES})"] = _names(rounding[~low], _reason)
    parts[f"not distinguishable from rounding ({SETTLES_LOW})"] = _names(rounding[low], _reason)
    parts["reported, as only twins tell what is rounding in low precision"] = _names(reported[alone], _end)
    parts["reported, as in low precision tokens may reach other experts"] = _names(reported[~alone], _reason)
    others = table[table.strategy != "single"]
    equal = int((done.equality == EQUAL).sum())
    if equal == len(table) and not len(others):
        return True, "All runs are finished, and none but single, with which others are compared."
    if equal == len(table):
        which = "The other run is" if len(others) == 1 else f"All {len(others)} other runs are"
        return True, f"{which} equal to single: {_compared(table)}."
    counts = [f"{equal} equal to single"] if good and equal else []
    counts += [f"{len(names)} {text}: {_listed(names)}" for text, names in parts.items() if names]
    return good, f"Of {len(table)} runs, {'; '.join(counts)}."


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:NAMED])} and {more:,} more"


def _names(rows: pd.DataFrame, detail: Any) -> list[str]:
    """Format each row as ``strategy x workload (detail)``."""
    details = ((row, detail(row)) for row in rows.to_dict("records"))
    return [f"{row['strategy']} x {row['workload']}" + (f" ({text})" if text else "") for row, text in details]


def _compared(table: pd.DataFrame) -> str:
    """Return what the verdict on these runs is based on."""
    others = table[table.strategy != "single"]
    weighed = int(others.weights_tolerance.notna().sum())
    ends = ["first steps", "validation loss", "test loss"]
    if others.ema_rel_diff.notna().any():
        ends.append("test loss of the averaged weights")
    if not weighed:
        return f"{', '.join(ends[:-1])} and {ends[-1]}"
    count = "" if weighed == len(others) else f" ({weighed} of {len(others)})"
    noise = others[others.weights_not_compared.fillna(0) > 0]
    most, of = noise.weights_not_compared.max(), ", ".join(dict.fromkeys(noise.workload))
    but = f" (not compared: up to {int(most)} of {of}, whose tolerance is as large as they are)" if len(noise) else ""
    return f"{', '.join(ends)} and weights{count}{but}"


def _reason(row: dict[Any, Any]) -> str:
    """Format what is wrong with the weights' type, or the difference that is too large: of a weight that has to be
    equal, the first steps, the end, a weight.
    """
    if not pd.isna(row["rounded_weights"]):
        return str(row["rounded_weights"])
    exact = _weights_differ(row) and row["weights_tolerance"] == 0
    if not exact and _starts_differ(row):
        return _first(row)
    if exact or (_weights_differ(row) and not _ends_differ(row)):
        return weights(row)
    return _end(row)


def _ends_differ(row: dict[Any, Any]) -> bool:
    if pd.isna(row["tolerance"]):
        return _end_difference(row) > LOW_MULTIPLE * row["noise_floor"]
    return _judge_final_losses(row) != EQUAL


def weights(row: dict[Any, Any]) -> str:
    """Format the weight that is the farthest from ``single``; empty if weights were not compared."""
    if pd.isna(row["weights_rel_diff"]):
        return ""
    tolerance = "" if pd.isna(row["weights_tolerance"]) else f", tolerance {row['weights_tolerance']:.1e}"
    return f"{row['weights_parameter']} {row['weights_rel_diff']:.1e}{tolerance}"


def _first(row: dict[Any, Any]) -> str:
    twins = f", tolerance {row['first_tolerance']:.1e}" if pd.isna(row["tolerance"]) else ""
    return f"first {FIRST_STEPS} losses or first gradient norm off by {row['first_rel_diff']:.1e}{twins}"


def _end(row: dict[Any, Any]) -> str:
    """Format the larger of the two final differences, and the twins'."""
    difference = max(DIFFERENCES, key=lambda column: -1.0 if pd.isna(row[column]) else row[column])
    twins = "" if pd.isna(row["noise_floor"]) else f", twins {row['noise_floor']:.1e}"
    text = f"{DIFFERENCES[difference]}{row[difference]:.1e}{twins}"
    if pd.isna(row["expert_flips"]):
        return text
    return f"{text}, {row['expert_flips']:,} of {row['expert_choices']:,} expert choices flipped"


def expected(table: pd.DataFrame) -> str:
    """Return what the models of runs that are not equal contain that explains it; empty without any."""
    rows = table[table.equality.eq(UNEQUAL) & table.notes.notna()]
    return " ".join(f"Expected: {notes}" for notes in dict.fromkeys(rows.notes))


def pages(table: pd.DataFrame) -> dict[str, str]:
    """Return the runs that are not equal to ``single``, and for each the page of its diagnosis in results/; of scripts
    only those that dumped their first steps.
    """
    done = table[(table.status == "done") & table.equality.isin([UNEQUAL, ROUNDING])]
    return {
        f"{row['strategy']} x {row['workload']}": f"diagnosis/{row['strategy']}/{row['workload']}.md"
        for row in done.to_dict("records")
        if pd.isna(row["diagnosable"]) or row["diagnosable"]
    }


def diagnosis(table: pd.DataFrame) -> str:
    """Return a sentence with a target that diagnoses what is not equal, or of a script how it gets one; empty if
    everything is equal.
    """
    targets = [*pages(table).values()]
    if not targets and table.equality.eq(UNEQUAL).any():
        return "A script has a diagnosis once it dumps its first steps: docs/diagnose.md."
    other = " (or another run's)" if len(targets) > 1 else ""
    return f"To see where and why, repeat the call with the target results/{targets[0]}{other}." if targets else ""
