#!/usr/bin/env python3
"""Train the workloads on one GPU in float32 and bf16, and put the losses beside a CPU's.

Needs no Snakemake and no Slurm, only the packages of envs/train.txt with a PyTorch for the GPU. Fails if a run does
not end, does not learn, or is farther from the CPU than the tolerance of its precision.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT, read_json, write_json, write_text
from shardlab.settings import load, resolve
from shardlab.settings.types import Run

TOLERANCES = {"full": 1e-2, "bf16": 5e-2}
"""Largest relative difference of the test loss to float32 on a CPU: another machine's arithmetic, many steps on."""
LEARNT = 0.98
"""Largest part of the untrained test loss."""


def main() -> None:
    """Prepare, train, evaluate, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: only to try this program")
    parser.add_argument("--workloads", nargs="+", default=["mlp", "mnist", "xsum", "vit", "llama2"])
    parser.add_argument("--strategies", nargs="+", default=["single", "ddp", "fsdp", "zero2"])
    parser.add_argument("--output", type=Path, default=Path("results/gpu.csv"), help="CSV file to write")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for workload in args.workloads:
            rows += compare(Path(place), workload, args.strategies, args.device)
    table = pd.DataFrame(rows)
    write_text(args.output, table.to_csv(index=False))
    print(table.to_string(index=False))
    if failed := [f"{row.strategy} x {row.workload} ({row.precision})" for row in table[~table.good].itertuples()]:
        raise UserError(f"did not learn, or is outside of its tolerance {TOLERANCES}: {', '.join(failed)}.")


def compare(place: Path, workload: str, strategies: list[str], device: str) -> list[dict[str, Any]]:
    """Rows of one workload: the CPU's run of ``single``, then each strategy in each precision on the device."""
    run = resolved(workload, "single", "cpu", "full")
    data, weights, settings = place / run.data.name, place / f"{workload}.safetensors", place / f"{workload}.json"
    write_json(settings, run.model_dump())
    program("prepare", "--data", run.data.model_dump_json(), "--raw", place, "--output", data)
    program("init", "--settings", settings, "--output", weights)
    untrained = evaluated(settings, data, weights, place / "untrained.json")
    expected, _ = trained(run, place, data, weights)
    rows = []
    for precision, tolerance in TOLERANCES.items():
        for strategy in strategies:
            loss, report = trained(resolved(workload, strategy, device, precision), place, data, weights)
            difference = abs(loss / expected - 1)
            rows.append(
                {
                    "workload": workload,
                    "strategy": strategy,
                    "precision": precision,
                    "device": report["devices"][0],
                    "untrained": untrained,
                    "cpu_float32": expected,
                    "test_loss": loss,
                    "difference": difference,
                    "step_seconds_median": report["step_seconds_median"],
                    "samples_per_second": report["samples_per_second"],
                    "peak_memory_bytes": max(report["peak_memory_bytes"]),
                    "good": difference <= tolerance and loss < LEARNT * untrained,
                }
            )
    return rows


def resolved(workload: str, strategy: str, device: str, precision: str) -> Run:
    """The run of a strategy on one rank."""
    values = {"ranks_per_node": 1, "site_settings": {"device": device}, "recipe": {"precision": precision}}
    return resolve.run(load.config(values), strategy, workload)


def trained(run: Run, place: Path, data: Path, weights: Path) -> tuple[float, dict[str, Any]]:
    """Train and evaluate; returns the test loss and the report of the training."""
    folder = place / f"{run.strategy}-{run.workload}-{run.site.device}-{run.recipe.precision}"
    write_json(folder / "run.json", run.model_dump())
    settings = ["--settings", folder / "run.json"]
    program("launch", "train", *settings, "--data", data, "--weights", weights, "--output", folder)
    loss = evaluated(folder / "run.json", data, folder / "model.safetensors", folder / "test.json")
    return loss, read_json(folder / "train.json", "report of the run", "train again")


def evaluated(settings: Path, data: Path, weights: Path, report: Path) -> float:
    """Test loss of weights."""
    program("evaluate", "--settings", settings, "--data", data, "--weights", weights, "--output", report)
    return float(read_json(report, "report of the evaluation", "evaluate again")["loss"])


def program(name: str, *words: object) -> None:
    """Run one of the project's programs.

    Raises:
        UserError: it failed; what it said is shown.
    """
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise UserError(f"{name}.py failed:\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    run_program(main)
