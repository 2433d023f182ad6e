#!/usr/bin/env python3
"""Test loss and metric of plain weights, each test sample once.

On one device, with the same code for every strategy; or sharded, under the run's own strategy, for models that one
device cannot hold (recipe.evaluation).
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from shardlab import checkpoint, distributed, models, sharing, strategies, tasks
from shardlab.data import order, store
from shardlab.errors import run_program
from shardlab.files import read_json, write_json
from shardlab.reports import TestReport
from shardlab.schema import check
from shardlab.settings import Run, read_run
from shardlab.tasks import Task


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
    sharded = run.recipe.evaluation == "sharded"
    report = (evaluate_sharded if sharded else evaluate)(run, args.data, args.weights)
    if distributed.is_main():
        write_json(args.output, report.model_copy(update={"untrained_loss": untrained}).model_dump())
        metric = "" if report.metric_value is None else f"  {report.metric_name} {report.metric_value:.6g}"
        print(f"test loss {report.loss:.6g}{metric}  samples {report.samples}")
    distributed.finish()


@torch.no_grad()
def evaluate(run: Run, data: Path, weights: Path) -> TestReport:
    """Loss per target and metric of ``weights`` over the whole test split, unpadded."""
    device = torch.device(run.site.device)
    dtype = getattr(torch, run.recipe.dtype)
    task = tasks.load(run.task, data, dtype, device)
    model = models.build(run)
    checkpoint.materialize(model, weights, device)
    model.eval()
    loss = score = 0.0
    targets = 0
    for indices in order.in_order(task.samples("test"), run.recipe.evaluation_batch):
        batch = task.batch("test", indices)
        outputs = task.outputs(model, batch)
        loss += float(task.loss(outputs, batch))
        score += task.score(model, outputs, batch)
        targets += task.targets("test", indices)
    return _report(run, task, loss / targets, score)


def evaluate_sharded(run: Run, data: Path, weights: Path) -> TestReport:
    """Loss per target of ``weights`` under the run's own strategy; a collective, the same on every rank."""
    world = distributed.world(run)
    dtype = getattr(torch, run.recipe.dtype)
    task = tasks.load(run.task, data, dtype, world.device, fixed_shapes="pp" in run.mesh)
    engine = strategies.build(run, task, world, weights)
    loss = sharing.mean_loss(task, engine, "test", run.recipe.evaluation_batch, world)
    return _report(run, task, loss, None)


def _report(run: Run, task: Task, loss: float, score: float | None) -> TestReport:
    samples = task.samples("test")
    known = score is not None or not task.scores
    return TestReport(
        workload=run.workload,
        loss=loss,
        untrained_loss=None,
        evaluation="sharded" if score is None else "whole",
        metric_name=task.metric_name,
        metric_value=task.metric(loss, score or 0.0, samples) if known else None,
        samples=samples,
        targets=task.targets("test", np.arange(samples)),
    )


if __name__ == "__main__":
    run_program(main)
