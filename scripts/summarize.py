#!/usr/bin/env python3
"""Summarize all runs: summary.csv for programs, summary.md for people. Runs that are missing are named."""

import argparse
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from shardlab.errors import UserError, run_program
from shardlab.files import read_json, write_text
from shardlab.report.records import TestReport, TrainReport
from shardlab.schema import check
from shardlab.settings import load, resolve
from shardlab.settings.types import Config, Run

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


def main() -> None:
    """Read the reports, write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    load.add_config_argument(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument("--gate", type=float, help="fail if a run is missing, or rel_diff is larger than this")
    args = parser.parse_args()
    planned, left_out = resolve.matrix(args.config)
    table = collect(planned, args.results)
    write_text(args.results / "summary.csv", table.to_csv(index=False))
    write_text(args.results / "summary.md", markdown(table, args.config, left_out))
    if args.gate is not None:
        pass_gate(table, args.gate)


def pass_gate(table: pd.DataFrame, gate: float) -> None:
    """Raise a UserError that names the runs that are missing or farther from ``single`` than the gate."""
    failed = [f"{row.strategy} x {row.workload} ({row.status})" for row in table[table.status != "done"].itertuples()]
    far = table[(table.status == "done") & ~(table.rel_diff <= gate)]
    failed += [f"{row.strategy} x {row.workload} (rel_diff {row.rel_diff:.1e})" for row in far.itertuples()]
    if failed:
        raise UserError(f"not equal to one device within {gate:g}: {', '.join(failed)}; see results/summary.md.")


def collect(planned: list[Run], results: Path) -> pd.DataFrame:
    """One row a run; a figure that was not measured is an empty cell."""
    rows = [_row(run, results) for run in planned]
    table = pd.DataFrame(rows, columns=COLUMNS).convert_dtypes()
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


def markdown(table: pd.DataFrame, config: Config, left_out: dict[tuple[str, str], str]) -> str:
    """The matrix of test losses, then one table of figures a workload, then what is left out or missing."""
    parts = ["# Summary", "", f"Site {config.site}, data {config.data}, size {config.size}, seed {config.seed}.", ""]
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
    return f"{row['test_loss']:.6f} ({_number(row['rel_diff'], '.0e')})"


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
            "peak MiB a rank": rows.peak_memory_bytes.map(lambda value: _number(value / 2**20, ".0f")),
        }
    )
    return str(shown.to_markdown(index=False, disable_numparse=True))


def _number(value: Any, form: str) -> str:
    return "" if pd.isna(value) else format(float(value), form)


if __name__ == "__main__":
    run_program(main)
