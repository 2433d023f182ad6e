"""Tiny trainings on GPUs, each with the training on one device that it is compared with."""

from typing import Any, NamedTuple

from shardlab.errors import UserError
from shardlab.settings.types import Run

KINDS: dict[str, dict[str, str]] = {
    "float64": {"dtype": "float64"},
    "float32": {"dtype": "float32"},
}
"""Arithmetic: its recipe."""
SLOWER = {"llama2": {"optimizer": {"learning_rate": 3e-4}}}
"""Recipe in float32, as in the parity suite: AdamW's first steps make a full update from the sign of a gradient that is
only rounding noise, and at llama2's default rate that alone can move a later norm beyond the bound.
"""
BATCHES = (5, 7, 11)
"""Samples per step: the first of these that exceeds the number of ranks and is not divisible by it."""
TO_CPU = "single (GPU to CPU)"


class Case(NamedTuple):
    """A training, the reference that it is compared with, and the folders of both."""

    label: str
    arithmetic: str
    run: Run
    reference: Run
    local: str
    other: str


def cases(workload: str, strategies: list[str], kind: str, ranks: int) -> list[Case]:
    """Return all trainings of a workload: each strategy in each arithmetic, on the most ranks that it supports.

    Raises:
        UserError: there are none.
    """
    alone = {name: run_of(workload, "single", name, kind, ranks, 1) for name in KINDS}
    on_cpu = {name: run_of(workload, "single", name, "cpu", ranks, 1) for name in KINDS}
    found = [Case(TO_CPU, name, alone[name], on_cpu[name], f"single-{name}", f"cpu-{name}") for name in KINDS]
    if kind == "cpu":
        found.clear()
    for strategy in strategies:
        for name in KINDS if strategy != "single" else ():
            if run := most(workload, strategy, name, kind, ranks):
                found.append(Case(strategy, name, run, alone[name], f"{strategy}-{name}", f"single-{name}"))
    if not found:
        raise UserError(f"none of the strategies {', '.join(strategies)} supports {workload} on {ranks} devices.")
    return found


def most(workload: str, strategy: str, arithmetic: str, kind: str, ranks: int) -> Run | None:
    """Return the run on the most ranks that it supports, on two or more if available; None if it supports none."""
    for count in range(ranks, min(ranks, 2) - 1, -1):
        try:
            run = run_of(workload, strategy, arithmetic, kind, ranks, count)
        except UserError:
            continue  # needs more or fewer ranks, or does not apply to this workload or arithmetic
        if run.devices_per_node <= ranks:
            return run
    return None


def run_of(workload: str, strategy: str, arithmetic: str, kind: str, ranks: int, count: int) -> Run:
    """Return a tiny run on ``count`` of the ranks, with the same batches for all runs of its workload."""
    from helpers.common import tiny_run  # type: ignore[import-not-found]

    recipe: dict[str, Any] = {"global_batch_size": next(batch for batch in BATCHES if batch > ranks)} | KINDS[
        arithmetic
    ]
    if recipe["dtype"] == "float32":
        recipe |= SLOWER.get(workload, {})
    run: Run = tiny_run(workload, strategy, count, **recipe)
    return run.model_copy(update={"site": run.site.model_copy(update={"device": kind})})
