"""The report of a training, built from its settings, metrics, attempts and measurements."""

import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Any

from shardlab.records.reports import FIRST_STEPS, Attempt, FirstStep, TrainReport
from shardlab.settings.types import WARMUP_STEPS, Run


def train_report(
    run: Run, records: list[dict[str, Any]], measured: dict[str, Any], attempts: Sequence[Attempt] = ()
) -> TrainReport:
    """Build the report of a run from its settings, its metrics records, its attempts and other measurements."""
    reported = [record for record in records if record["kind"] == "attempt"]
    started = reported[-1]["step"]
    attempts = [attempt.model_copy() for attempt in attempts]
    if attempts:
        attempts[-1].why, attempts[-1].from_step, attempts[-1].reached = "finished", started, records[-1]["step"] + 1
        attempts[-1].first_step_at = reported[-1]["time"]
    steps = [record for record in records if record["kind"] == "train"]
    times = _step_statistics(steps[WARMUP_STEPS:])
    sent = measured["traffic"]
    values = {
        "settings": run.model_dump(mode="json"),
        "strategy": run.strategy,
        "workload": run.workload,
        "mesh": run.mesh.root,
        "world_size": run.world_size,
        "nodes": run.nodes,
        "steps": len(steps),
        "samples": sum(record["samples"] for record in steps),
        "targets": sum(record["targets"] for record in steps),
        "bytes_per_step": None if sent is None else sum(entry["bytes"] for entry in sent),
        "first_steps": [{key: record[key] for key in FirstStep.model_fields} for record in steps[:FIRST_STEPS]],
        "learned_nothing": _learned_nothing(steps),
        "train_loss": next(record["loss"] for record in reversed(steps) if record["loss"] is not None),
        "validation_loss": [record["loss"] for record in records if record["kind"] == "validation"][-1],
        "mfu": _utilization(run, measured, times["step_seconds_median"]),
        "versions": _versions(),
        "attempts": attempts,
        "lost_steps": _lost(attempts),
    }
    values |= times | measured
    values["wall_seconds"] += sum(each["seconds"] or 0.0 for each in steps if each["step"] < started)
    return TrainReport.model_validate(values)


def _learned_nothing(steps: list[dict[str, Any]]) -> str | None:
    """Return why the run learned nothing: two such runs have equal losses, whatever their strategies do."""
    norms, losses = ({record[key] for record in steps} - {None} for key in ("grad_norm", "loss"))
    if norms == {0.0}:
        return "its gradient norm is always 0"
    if len(losses) == 1 and len(steps) > 1:
        return "its loss never changes"
    return None


def _utilization(run: Run, measured: dict[str, Any], seconds: float | None) -> float | None:
    """Model FLOPs utilization (Chowdhery et al., 2022, arXiv:2204.02311, appendix B)."""
    peak = measured["device_peak_flops"]
    if peak is None or seconds is None or measured["flops_per_step"] is None:
        return None
    return float(measured["flops_per_step"] / seconds / (peak * run.world_size * run.devices_per_rank))


def _lost(attempts: Sequence[Attempt]) -> int:
    """Return the number of repeated steps."""
    known = [(each.from_step, each.reached or 0) for each in attempts if each.from_step is not None]
    return sum(max(0, reached - start) for (_, reached), (start, _) in pairwise(known))


def _step_statistics(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return median and 95th percentile step time and the throughput; null without steps."""
    steps = [step for step in steps if step["seconds"] is not None]  # a script may write its lines all at once
    if not steps:
        return {"step_seconds_median": None, "step_seconds_p95": None, "samples_per_second": None}
    seconds = sorted(record["seconds"] for record in steps)
    last = len(seconds) - 1
    return {
        "step_seconds_median": statistics.median(seconds),
        "step_seconds_quartiles": (seconds[round(0.25 * last)], seconds[round(0.75 * last)]),
        "step_seconds_p95": seconds[round(0.95 * last)],
        "samples_per_second": sum(record["samples"] for record in steps) / sum(seconds),
    }


def _versions() -> dict[str, str]:
    """Return the versions of this process's software."""
    packages = ("torch", "deepspeed", "numpy", "safetensors")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
