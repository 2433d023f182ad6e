"""The table of all runs: one row per run, each held to the run that was asked for. Imports no torch."""

from pathlib import Path
from typing import Any

import pandas as pd

from shardlab.errors import UserError
from shardlab.report import verdict
from shardlab.report.plan import FILE, Plan
from shardlab.report.records import Kind, TestReport, TrainReport, TwinsReport
from shardlab.settings import identity, resolve
from shardlab.settings.config import Config
from shardlab.settings.types import Run

SHOWN: tuple[Kind, ...] = ("weights", "gradients", "optimizer", "activations")
"""Kinds of tensors with a column of their own: the most that any rank held."""
COLUMNS = [
    "strategy",
    "workload",
    "status",
    "test_loss",
    "untrained_test_loss",
    "rel_diff",
    "spread",
    "validation_loss",
    "validation_rel_diff",
    "equality",
    "metric_name",
    "metric_value",
    "world_size",
    "nodes",
    "steps",
    "wall_seconds",
    "samples_per_second",
    "tensor_bytes",
    *(f"{kind}_bytes" for kind in SHOWN),
    "peak_memory_bytes",
    "predicted_memory_bytes",
    "memory_error",
    "bytes_per_step",
]
MADE = ("data", "initial weights")
"""What every strategy's run must share with ``single``'s, besides its settings."""


def of(
    config: Config, results: Path, tolerance: float | None = None
) -> tuple[pd.DataFrame, dict[tuple[str, str], str], float]:
    """The judged table of a call's runs, the runs left out with the reason, and the tolerance (default: by dtype)."""
    planned, left_out = resolve.matrix(config)
    tolerance = tolerance or max(verdict.TOLERANCES[run.recipe.dtype] for run in planned)
    return verdict.judge(collect(planned, results), tolerance), left_out, tolerance


def collect(planned: list[Run], results: Path) -> pd.DataFrame:
    """One row per run; a figure that was not measured is an empty cell.

    A row whose files belong to another run than the planned one has status ``stale``, with the key that differs, and
    none of their figures; one whose files were edited or damaged has status ``damaged``.
    """
    shared: dict[str, dict[str, str]] = {}
    rows = {}
    # `single` first: what it was made of is what the others are held to.
    for run in sorted(planned, key=lambda run: run.strategy != "single"):
        rows[run.strategy, run.workload] = _row(run, results, shared)
    spreads = {run.workload: _spread(run, results, rows) for run in planned if run.strategy == "single"}
    ordered = [
        rows[run.strategy, run.workload] | (spreads.get(run.workload, {}) if run.strategy != "single" else {})
        for run in planned
    ]
    return compared(pd.DataFrame(ordered, columns=COLUMNS).convert_dtypes())


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the relative differences filled in, where both the run and its ``single`` have a loss."""
    singles = table[table.strategy == "single"].set_index("workload")
    for loss, difference in (("test_loss", "rel_diff"), ("validation_loss", "validation_rel_diff")):
        single = table.workload.map(singles[loss])
        table[difference] = (table[loss] - single).abs() / single
    return table


def _row(run: Run, results: Path, shared: dict[str, dict[str, str]]) -> dict[str, Any]:
    folder = results / run.strategy / run.workload
    row: dict[str, Any] = {"strategy": run.strategy, "workload": run.workload, "status": "missing"}
    if not folder.with_name(f"{folder.name}.done").exists():
        return row
    try:
        train = TrainReport.read(folder / "train.json", "train again")
        test = TestReport.read(folder / "test.json", "evaluate again") if (folder / "test.json").exists() else None
    except UserError as error:
        return row | {"status": f"damaged: {error}"}
    made = dict(zip(MADE, (train.identity.data, train.initial_weights), strict=True))
    if key := _differs(run, train, test, made, shared.setdefault(run.workload, made)):
        return row | {"status": f"stale: {key}"}
    row |= {
        "status": "not evaluated",
        "validation_loss": train.validation_loss,
        "world_size": train.world_size,
        "nodes": train.nodes,
        "steps": train.steps,
        "wall_seconds": train.wall_seconds,
        "samples_per_second": train.samples_per_second,
        "tensor_bytes": max(rank.peak for rank in train.tensor_bytes),
        **{f"{kind}_bytes": max(rank.largest[kind] for rank in train.tensor_bytes) for kind in SHOWN},
        "peak_memory_bytes": max(train.peak_memory_bytes),
        **_foreseen(run, folder, train),
        "bytes_per_step": train.bytes_per_step,
    }
    if test:
        row |= {
            "status": "done",
            "test_loss": test.loss,
            "untrained_test_loss": test.untrained_loss,
            "metric_name": test.metric_name,
            "metric_value": test.metric_value,
        }
    return row


def _foreseen(run: Run, folder: Path, train: TrainReport) -> dict[str, Any]:
    """What the plan of just this run said of its memory, and by which part of what was measured it is off."""
    try:
        plan = Plan.read(folder / FILE, "plan again")
    except UserError:
        return {}
    if not plan.is_of(run):
        return {}
    measured = max(rank.peak for rank in train.tensor_bytes)
    return {
        "predicted_memory_bytes": plan.predicted_memory_bytes,
        "memory_error": plan.predicted_memory_bytes / measured - 1,
    }


def _differs(
    run: Run, train: TrainReport, test: TestReport | None, made: dict[str, str], shared: dict[str, str]
) -> str | None:
    """The first thing in which the reports are not those of ``run``; None if they are."""
    if key := identity.difference(run.model_dump(mode="json"), train.settings):
        return key
    planned = identity.of(run, train.identity.data)
    if train.identity != planned:
        return "identity"
    if key := identity.difference(shared, made):
        return key
    if test and test.identity != planned:
        return "evaluated with other settings or data"
    if test and test.weights != train.weights:
        return "evaluated other weights"
    return None


def _spread(run: Run, results: Path, rows: dict[tuple[str, str], dict[str, Any]]) -> dict[str, float]:
    """How far the twins of a workload's ``single`` end from it; nothing without twins of just this run."""
    single, path = rows["single", run.workload], results / "twins" / f"{run.workload}.json"
    if single["status"] != "done" or not path.exists():
        return {}
    try:
        report = TwinsReport.read(path, "make it again")
    except UserError:
        return {}
    if report.identity.numbers != identity.of(run, "").numbers:
        return {}
    test = _farthest(single["test_loss"], [twin.test_loss for twin in report.twins])
    return {"spread": max(test, _farthest(single["validation_loss"], [twin.validation_loss for twin in report.twins]))}


def _farthest(loss: float, others: list[float]) -> float:
    return max((abs(other - loss) / loss for other in others), default=0.0)
