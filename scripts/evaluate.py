#!/usr/bin/env python3
"""Test loss and metric of plain weights, each test sample once.

On one device, with the same code for every strategy; or sharded, under the run's own strategy, for models that one
device cannot hold (recipe.evaluation).
"""

import argparse
from pathlib import Path

import torch

from shardlab import strategies
from shardlab.data import store
from shardlab.errors import run_program
from shardlab.files import read_json, write_json
from shardlab.report.records import TestReport
from shardlab.schema import check
from shardlab.settings.types import Run, read_run
from shardlab.training import distributed, evaluation, tasks
from shardlab.training.evaluation import evaluate


def main() -> None:
    """Evaluate and write test.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="safetensors file to evaluate")
    parser.add_argument("--untrained", type=Path, help="report of the initial weights, for untrained_loss")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()

    run = read_run(args.settings)
    store.verify(args.data, run.data)
    untrained = None
    if args.untrained:
        before = read_json(args.untrained, "report of the initial weights", f"run snakemake {args.untrained}")
        untrained = check(TestReport, before, str(args.untrained)).loss
    distributed.start(run.site.device)
    report = (evaluate_sharded if run.evaluated_sharded else evaluate)(run, args.data, args.weights)
    if distributed.is_main():
        write_json(args.output, report.model_copy(update={"untrained_loss": untrained}).model_dump())
        metric = "" if report.metric_value is None else f"  {report.metric_name} {report.metric_value:.6g}"
        print(f"test loss {report.loss:.6g}{metric}  samples {report.samples}")
    distributed.finish()


def evaluate_sharded(run: Run, data: Path, weights: Path) -> TestReport:
    """Loss per target of ``weights`` under the run's own strategy; a collective, the same on every rank."""
    world = distributed.world(run.mesh, run.site.device)
    dtype = getattr(torch, run.recipe.dtype)
    task = tasks.load(run.task, data, dtype, world.device, fixed_shapes=run.mesh.pipelined)
    engine = strategies.build(run, task, world, weights)
    return evaluation.evaluate_sharded(run, engine, task, world)


if __name__ == "__main__":
    run_program(main)
