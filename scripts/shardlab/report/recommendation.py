"""Recommended strategy for a workload, from measurements, compared with the rule of thumb."""

from typing import Any

import pandas as pd

from shardlab.report.units import readable_bytes, short_number
from shardlab.report.verdict import UNEQUAL

RULE = ("ddp", "fsdp")
"""Rule of thumb: DDP while a copy fits into each device's memory, FSDP otherwise."""
NEAR = 0.9
"""Fraction of the fastest strategy's speed above which another one counts as equally fast, given the noise."""


Runs = dict[str, dict[Any, Any]]
"""Strategy: its row."""


def measured(rows: pd.DataFrame) -> Runs:
    """Return the rows of one workload that can be chosen from."""
    known = rows[(rows.status == "done") & (rows.equality != UNEQUAL)]
    known = known.dropna(subset=["samples_per_second", "tensor_bytes"])
    return {str(row["strategy"]): row for row in known.to_dict("records")}


def smallest_and_fastest(runs: Runs) -> tuple[str, str]:
    """Return the strategies with the least memory and with the most samples per second."""
    smallest = min(runs, key=lambda name: runs[name]["tensor_bytes"])
    return smallest, max(runs, key=lambda name: runs[name]["samples_per_second"])


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
    smallest, fastest = smallest_and_fastest(runs)
    parts = [f"Of {len(runs)} strategies measured here, {fastest} is the fastest: {_figures(runs[fastest])}."]
    if fastest == "single":
        parts = [f"One device is the fastest here ({_figures(runs[fastest])}): for this model ranks only add waiting."]
    if smallest != fastest:
        part = runs[smallest]["samples_per_second"] / runs[fastest]["samples_per_second"]
        parts.append(f"Least memory: {smallest}, {_figures(runs[smallest])}, {part:.0%} of that speed.")
    parts += [_rule(runs, fastest)]
    return " ".join(filter(None, parts))


def _rule(runs: Runs, fastest: str) -> str:
    known = [name for name in RULE if name in runs]
    if not known:
        return ""
    part = runs[known[0]]["samples_per_second"] / runs[fastest]["samples_per_second"]
    held = "it holds here" if part >= NEAR else f"here it reaches {part:.0%} of the fastest one's speed"
    return f"The rule of thumb (ddp while the model fits, fsdp if not) suggests {known[0]}: {held}."


def _figures(row: dict[Any, Any]) -> str:
    speed, memory = short_number(row["samples_per_second"]), readable_bytes(row["tensor_bytes"])
    return f"{speed} samples/s, {memory} of tensors per rank"
