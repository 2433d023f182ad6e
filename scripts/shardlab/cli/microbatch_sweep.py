"""Measure step time and bubble of a pipeline by the number of micro-batches per batch."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from shardlab.cli import at_least
from shardlab.errors import UserError
from shardlab.files import COMMAND, read_json, write_json, write_text
from shardlab.report import charts
from shardlab.settings import load, resolve
from shardlab.settings.types import Run


def main() -> None:
    """Train once per number, write the table and the chart."""
    parser = argparse.ArgumentParser(description=__doc__)
    load.add_config_argument(parser)
    parser.add_argument("--strategy", default="pp_gpipe", help="a strategy with pp (GPipe takes any number)")
    parser.add_argument("--workload", required=True, help="workload")
    parser.add_argument("--data", type=Path, required=True, help="folder of its prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="its initial weights")
    parser.add_argument("--image", type=Path, help="report of the image, if the site uses one")
    parser.add_argument("--counts", type=at_least(1), nargs="+", default=[1, 2, 4, 8, 16], help="micro-batches")
    parser.add_argument("--output", type=Path, required=True, help="CSV file to write; the chart is put next to it")
    args = parser.parse_args()
    run = resolve.run(args.config, args.strategy, args.workload)
    if not run.mesh.pipelined:
        raise UserError(f"{args.strategy} has no pp, so its batches are not split; use a strategy with pp.")
    starter = [sys.executable, str(COMMAND), "launch", "train"]
    starter += [f"--data={args.data}", f"--weights={args.weights}", *([f"--image={args.image}"] if args.image else [])]
    table = pd.DataFrame([measure(run, count, starter, args.output.parent) for count in args.counts])
    write_text(args.output, table.to_csv(index=False))
    picture = charts.load("microbatch_sweep").draw(table)
    write_text(args.output.with_suffix(".svg"), charts.svg(picture.to_dict()))
    print(table.to_string(index=False))


def measure(run: Run, count: int, starter: list[str], folder: Path) -> dict[str, Any]:
    """Train with ``count`` micro-batches; return the step statistics of train.json.

    Raises:
        UserError: the training failed.
    """
    options = run.options.model_copy(update={"n_microbatches": count})
    changed = run.model_copy(update={"options": options})
    with tempfile.TemporaryDirectory(dir=folder, prefix=".microbatch_sweep") as place:
        settings = Path(place) / "run.json"
        write_json(settings, changed.model_dump())
        if subprocess.run([*starter, f"--settings={settings}", f"--output={place}"]).returncode:
            raise UserError(f"{run.strategy} x {run.workload} with {count} micro-batches failed; see above.")
        report = read_json(Path(place) / "train.json", "report of the run", "train again")
    idle = report["idle"]
    return {
        "strategy": run.strategy,
        "workload": run.workload,
        "ranks": run.mesh.stages,
        "schedule": options.pipeline_schedule,
        "n_microbatches": count,
        "step_seconds_median": report["step_seconds_median"],
        "samples_per_second": report["samples_per_second"],
        "idle": sum(idle) / len(idle),
        "idle_planned": changed.pipeline_bubble,
        "train_loss": report["train_loss"],
    }
