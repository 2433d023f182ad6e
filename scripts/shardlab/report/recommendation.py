"""Recommended strategy for a workload, from measurements."""

from typing import Any

import pandas as pd

from shardlab.report.units import readable_bytes, short_number
from shardlab.report.verdict import UNEQUAL

MEASURED = ["samples_per_second", "tensor_bytes", "step_seconds_q1", "step_seconds_q3"]


def advice(rows: pd.DataFrame, *, on_cpus: bool = False) -> str:
    """Return a few sentences for the rows of one workload: the fastest strategy, and those whose middle half of the
    steps overlaps its; of those on as many ranks the one with the least memory. No fastest one ``on_cpus``, where
    ranks share cores. Empty if there is nothing to choose from.
    """
    known = rows[(rows.status == "done") & (rows.equality != UNEQUAL)].dropna(subset=MEASURED)
    if len(known) < 2:
        return ""
    by_speed = known.sort_values("samples_per_second", ascending=False, kind="stable")
    quick = by_speed[by_speed.step_seconds_q1 <= by_speed.step_seconds_q3.iloc[0]]
    *others, last = quick.strategy
    figures = _figures(quick.iloc[0])
    if on_cpus:
        parts = ["Speeds on CPUs are not ranked: ranks share cores, also with other runs."]
    elif others:
        names = f"{', '.join(others)} and {last}"
        parts = [f"Which is the fastest of {names} cannot be told: the times of their steps overlap."]
    elif last == "single":
        parts = [f"One device is the fastest here ({figures}): for this model ranks only add waiting."]
    else:
        parts = [f"Of {len(known)} strategies measured here, {last} is the fastest: {figures}."]
    for ranks in sorted({int(count) for count in known.world_size}):
        if len(of_ranks := known[known.world_size == ranks]) > 1:
            least = of_ranks.sort_values("tensor_bytes", kind="stable").iloc[0]
            parts.append(f"Least memory on {ranks} rank{'s' * (ranks > 1)}: {least.strategy}, {_figures(least)}.")
    return " ".join(parts)


def _figures(row: Any) -> str:
    speed, memory = short_number(row.samples_per_second), readable_bytes(row.tensor_bytes)
    return f"{speed} samples/s, {memory} of tensors per rank"
