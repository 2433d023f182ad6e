"""Recommended strategy for a workload, from measurements, compared with the rule of thumb."""

from typing import Any

import pandas as pd

from shardlab.report.units import readable_bytes, short_number
from shardlab.report.verdict import UNEQUAL

RULE = ("ddp", "fsdp")
"""Rule of thumb: DDP while a copy fits into each device's memory, FSDP otherwise."""

Runs = dict[str, dict[Any, Any]]
"""Strategy: its row."""


def measured(rows: pd.DataFrame) -> Runs:
    """Return the rows of one workload that can be chosen from."""
    known = rows[(rows.status == "done") & (rows.equality != UNEQUAL)]
    known = known.dropna(subset=["samples_per_second", "tensor_bytes", "step_seconds_q1", "step_seconds_q3"])
    return {str(row["strategy"]): row for row in known.to_dict("records")}


def fastest(runs: Runs) -> list[str]:
    """Return the strategy with the most samples per second, and those whose middle half of the steps overlaps its."""
    by_speed = sorted(runs, key=lambda name: -runs[name]["samples_per_second"])
    return [name for name in by_speed if runs[name]["step_seconds_q1"] <= runs[by_speed[0]]["step_seconds_q3"]]


def smallest(runs: Runs) -> dict[int, str]:
    """Return the strategy with the least memory per rank of those on as many ranks, by their number; without numbers
    of which there is one strategy alone.
    """
    of_ranks: dict[int, list[str]] = {}
    for name, run in runs.items():
        of_ranks.setdefault(run["world_size"], []).append(name)
    return {
        ranks: min(names, key=lambda name: runs[name]["tensor_bytes"])
        for ranks, names in sorted(of_ranks.items())
        if len(names) > 1
    }


def trade(runs: Runs, name: str) -> list[str]:
    """Return a strategy, its memory, and its time per step and ranks, in words; also compared with single's if that is
    there.
    """
    run, single = runs[name], runs.get("single")
    memory, time = readable_bytes(run["tensor_bytes"]), f"{short_number(run['samples_per_second'])} samples/s"
    if single is not None:
        times = single["samples_per_second"] / run["samples_per_second"]
        memory += f" ({run['tensor_bytes'] / single['tensor_bytes']:.0%})"
        time = f"{times:.2g}\u00d7 time" if times < 10 else f"{times:.0f}\u00d7 time"
    return [name, memory, f"{time}, {run['world_size']} rank" + "s" * (run["world_size"] > 1)]


def advice(rows: pd.DataFrame) -> str:
    """Return a few sentences for the rows of one workload; empty if there is nothing to choose from."""
    runs = measured(rows)
    if len(runs) < 2:
        return ""
    quickest, *others = fastest(runs)
    parts = [f"Of {len(runs)} strategies measured here, {quickest} is the fastest: {_figures(runs[quickest])}."]
    if quickest == "single" and not others:
        parts = [f"One device is the fastest here ({_figures(runs[quickest])}): for this model ranks only add waiting."]
    if others:
        parts = [f"{_listed([quickest, *others])} are the fastest: their steps vary more than they differ."]
    parts += [
        f"Least memory on {ranks} rank{'s' * (ranks > 1)}: {name}, {_figures(runs[name])}."
        for ranks, name in smallest(runs).items()
    ]
    return " ".join(filter(None, [*parts, _rule(runs, [quickest, *others])]))


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _rule(runs: Runs, quickest: list[str]) -> str:
    """Return whether the rule of thumb holds: that what it suggests is among the quickest."""
    known = [name for name in RULE if name in runs]
    if not known:
        return ""
    part = runs[known[0]]["samples_per_second"] / runs[quickest[0]]["samples_per_second"]
    held = "it holds here" if known[0] in quickest else f"here it reaches {part:.0%} of the fastest one's speed"
    return f"The rule of thumb (ddp while the model fits, fsdp if not) suggests {known[0]}: {held}."


def _figures(row: dict[Any, Any]) -> str:
    speed, memory = short_number(row["samples_per_second"]), readable_bytes(row["tensor_bytes"])
    return f"{speed} samples/s, {memory} of tensors per rank"
