#!/usr/bin/env python3
"""Step time of a pipeline over the number of micro-batches that a batch is split into; its bubble beside the theory."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from shardlab.errors import UserError, run_program
from shardlab.files import read_json, write_atomic, write_json, write_text
from shardlab.settings import load, resolve
from shardlab.settings.types import Run


def main() -> None:
    """Train once for each number, write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    load.add_config_argument(parser)
    parser.add_argument("--strategy", default="pp_gpipe", help="a strategy with pp (GPipe takes any number)")
    parser.add_argument("--workload", required=True, help="workload")
    parser.add_argument("--data", type=Path, required=True, help="folder of its prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="its initial weights")
    parser.add_argument("--image", type=Path, help="report of the image, where the site runs in one")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="numbers of micro-batches")
    parser.add_argument("--output", type=Path, required=True, help="CSV file to write; the picture goes beside it")
    args = parser.parse_args()
    run = resolve.run(args.config, args.strategy, args.workload)
    if not run.mesh.pipelined:
        raise UserError(f"{args.strategy} has no pp, so its batches are not split; name a strategy with pp.")
    starter = [sys.executable, str(Path(__file__).with_name("launch.py")), "train"]
    starter += [f"--data={args.data}", f"--weights={args.weights}", *([f"--image={args.image}"] if args.image else [])]
    table = pd.DataFrame([measure(run, count, starter, args.output.parent) for count in args.counts])
    write_text(args.output, table.to_csv(index=False))
    figure = draw(table)
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text, to be searched and read aloud
    picture = args.output.with_suffix(".svg")
    write_atomic(picture, lambda path: figure.savefig(path, format="svg", bbox_inches="tight"))
    print(table.to_string(index=False))


def measure(run: Run, count: int, starter: list[str], folder: Path) -> dict[str, Any]:
    """Train with ``count`` micro-batches; returns what its train.json says of the steps.

    Raises:
        UserError: the training failed.
    """
    options = run.options.model_copy(update={"microbatches": count})
    with tempfile.TemporaryDirectory(dir=folder, prefix=".split_size") as place:
        settings = Path(place) / "run.json"
        write_json(settings, run.model_copy(update={"options": options}).model_dump())
        if subprocess.run([*starter, f"--settings={settings}", f"--output={place}"]).returncode:
            raise UserError(f"{run.strategy} x {run.workload} with {count} micro-batches failed; see above.")
        report = read_json(Path(place) / "train.json", "report of the run", "train again")
    idle = report["idle"]
    return {
        "strategy": run.strategy,
        "workload": run.workload,
        "ranks": run.mesh.stages,
        "schedule": options.schedule,
        "microbatches": count,
        "step_seconds_median": report["step_seconds_median"],
        "samples_per_second": report["samples_per_second"],
        "idle": sum(idle) / len(idle),
        "idle_theory": report["idle_theory"],
        "train_loss": report["train_loss"],
    }


def draw(table: pd.DataFrame) -> Figure:
    """Two panels over the number of micro-batches: the step's time; the bubble, measured and in theory."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    left.plot(table.microbatches, table.step_seconds_median * 1000, marker="o")
    left.set_ylabel("median step (ms)")
    right.plot(table.microbatches, table.idle, marker="o", label="measured")
    if table.idle_theory.notna().all():
        right.plot(table.microbatches, table.idle_theory, marker="s", linestyle="--", label="(p - 1) / (m + p - 1)")
    right.set_ylabel("forward and backward: part that a rank waits")
    right.legend(frameon=False)
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        panel.set_xticks(table.microbatches, labels=[str(count) for count in table.microbatches])
        panel.set_xlabel("micro-batches")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    first = table.iloc[0]
    figure.suptitle(f"{first['workload']} under {first['strategy']} ({first['schedule']}) on {first['ranks']} ranks")
    return figure


if __name__ == "__main__":
    run_program(main)
