"""The table of all runs: one row per run, the verdict over them, and the page for people. Imports no torch."""

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from shardlab.files import read_json
from shardlab.report.records import TestReport, TrainReport
from shardlab.schema import check
from shardlab.settings.types import Config, Run

TOLERANCE = 1e-4
"""Largest relative difference of a test loss to that of ``single`` that counts as equal (float32)."""
COLUMNS = [
    "strategy",
    "workload",
    "status",
    "test_loss",
    "untrained_test_loss",
    "rel_diff",
    "metric_name",
    "metric_value",
    "world_size",
    "nodes",
    "steps",
    "wall_seconds",
    "samples_per_second",
    "peak_memory_bytes",
    "predicted_memory_bytes",
    "bytes_per_step",
]


def collect(planned: list[Run], results: Path) -> pd.DataFrame:
    """One row per run; a figure that was not measured is an empty cell."""
    rows = [_row(run, results) for run in planned]
    return compared(pd.DataFrame(rows, columns=COLUMNS).convert_dtypes())


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The table with ``rel_diff`` filled in, where both the run and its ``single`` have a test loss."""
    reference = table[table.strategy == "single"].set_index("workload").test_loss
    single = table.workload.map(reference)
    table["rel_diff"] = (table.test_loss - single).abs() / single
    return table


def _row(run: Run, results: Path) -> dict[str, Any]:
    folder = results / run.strategy / run.workload
    row: dict[str, Any] = {"strategy": run.strategy, "workload": run.workload, "status": "missing"}
    if not folder.with_suffix(".done").exists():
        return row
    train = check(TrainReport, read_json(folder / "train.json", "report", "train again"), f"{folder}/train.json")
    row |= {
        "status": "not evaluated",
        "world_size": train.world_size,
        "nodes": train.nodes,
        "steps": train.steps,
        "wall_seconds": train.wall_seconds,
        "samples_per_second": train.samples_per_second,
        "peak_memory_bytes": max(train.peak_memory_bytes),
        "predicted_memory_bytes": train.predicted_memory_bytes,
        "bytes_per_step": train.bytes_per_step,
    }
    if (folder / "test.json").exists():
        test = check(TestReport, read_json(folder / "test.json", "report", "evaluate again"), f"{folder}/test.json")
        row |= {
            "status": "done",
            "test_loss": test.loss,
            "untrained_test_loss": test.untrained_loss,
            "metric_name": test.metric_name,
            "metric_value": test.metric_value,
        }
    return row


def verdict(table: pd.DataFrame, tolerance: float = TOLERANCE) -> tuple[bool, str]:
    """Whether every run ended within ``tolerance`` of ``single``, and one sentence that says so or names the others."""
    done = table[table.status == "done"]
    others = {
        f"not within {tolerance:g} of single": _names(done[done.rel_diff > tolerance], "rel_diff", ".1e"),
        "without a finished single to compare with": _names(done[done.rel_diff.isna()]),
        "not finished": _names(table[table.status != "done"], "status", ""),
    }
    if not any(others.values()):
        every = f"All {len(table)} runs are" if len(table) > 1 else "The only run is"
        return True, f"{every} within {tolerance:g} of single."
    parts = [f"{len(names)} {what}: {', '.join(names)}" for what, names in others.items() if names]
    return False, f"Of {len(table)} runs, {'; '.join(parts)}."


def _names(rows: pd.DataFrame, column: str | None = None, form: str = "") -> list[str]:
    """Runs by name, with a column's value behind each."""
    return [
        f"{row['strategy']} x {row['workload']}" + (f" ({format(row[column], form)})" if column else "")
        for row in rows.to_dict("records")
    ]


def call(config: Config) -> str:
    """One sentence that names what was run: place, data, size, seed, ranks and all that the call overrides."""
    parts = [f"site {config.site}", f"data {config.data}", f"size {config.size}", f"seed {config.seed}"]
    parts.append(f"nodes {config.nodes} x {config.ranks_per_node} ranks (more where a strategy needs them)")
    for name in ("recipe", "site_settings"):
        parts += [f"{name}.{key} = {value}" for key, value in _flat(getattr(config, name))]
    if config.container is not None:
        parts.append(f"container {'on' if config.container else 'off'}")
    return f"Call: {', '.join(parts)}."


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key.inner, value) of nested settings."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def markdown(table: pd.DataFrame, config: Config, left_out: dict[tuple[str, str], str]) -> str:
    """The verdict, the call, the matrix of test losses, the figures of each workload, what is left out or missing."""
    parts = ["# Summary", "", f"**{verdict(table)[1]}**", "", call(config), ""]
    parts += ["## Test loss, and its relative difference to `single`", ""]
    parts += [_matrix(table, config), ""]
    for workload in config.workloads:
        parts += [f"## {workload}", "", _figures(table[table.workload == workload]), ""]
    if left_out:
        parts += ["## Left out", ""] + [f"- {s} x {w}: {reason}" for (s, w), reason in left_out.items()] + [""]
    open_runs = table[table.status != "done"]
    if len(open_runs):
        parts += ["## Not complete", ""]
        parts += [f"- {row.strategy} x {row.workload}: {row.status}" for row in open_runs.itertuples()] + [""]
    return "\n".join(parts)


def _matrix(table: pd.DataFrame, config: Config) -> str:
    cells = {(row["strategy"], row["workload"]): _cell(row) for row in table.to_dict("records")}
    rows = [[strategy, *(cells.get((strategy, w), "-") for w in config.workloads)] for strategy in config.strategies]
    return tabulate(rows, headers=["strategy", *config.workloads], tablefmt="pipe")


def _cell(row: dict[Hashable, Any]) -> str:
    if pd.isna(row["test_loss"]):
        return str(row["status"])
    difference = "no single" if pd.isna(row["rel_diff"]) else format(row["rel_diff"], ".0e")
    return f"{row['test_loss']:.6f} ({difference})"


def _figures(rows: pd.DataFrame) -> str:
    metric = next((name for name in rows.metric_name.dropna()), "metric")
    shown = pd.DataFrame(
        {
            "strategy": rows.strategy,
            "ranks": rows.world_size.map(lambda value: _number(value, ".0f")),
            "steps": rows.steps.map(lambda value: _number(value, ".0f")),
            "test loss": rows.test_loss.map(lambda value: _number(value, ".6f")),
            "untrained": rows.untrained_test_loss.map(lambda value: _number(value, ".4f")),
            metric: rows.metric_value.map(lambda value: _number(value, ".4f")),
            "wall s": rows.wall_seconds.map(lambda value: _number(value, ".2f")),
            "samples/s": rows.samples_per_second.map(lambda value: _number(value, ".0f")),
            "peak MiB per rank": rows.peak_memory_bytes.map(lambda value: _number(value / 2**20, ".0f")),
        }
    )
    return str(shown.to_markdown(index=False, disable_numparse=True))


def _number(value: Any, form: str) -> str:
    return "" if pd.isna(value) else format(float(value), form)
