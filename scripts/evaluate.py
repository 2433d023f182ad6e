#!/usr/bin/env python3
"""Test loss and metric of plain weights: one device, each test sample once, the same code for every strategy."""

import argparse
from pathlib import Path

import torch

from shardlab import checkpoint, distributed, models, tasks
from shardlab.data import order, store
from shardlab.errors import run_program
from shardlab.files import read_json, write_json
from shardlab.reports import TestReport
from shardlab.schema import check
from shardlab.settings import Run, read_run


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
    report = evaluate(run, args.data, args.weights).model_copy(update={"untrained_loss": untrained})
    write_json(args.output, report.model_dump())
    print(f"test loss {report.loss:.6g}  {report.metric_name} {report.metric_value:.6g}  samples {report.samples}")


@torch.no_grad()
def evaluate(run: Run, data: Path, weights: Path) -> TestReport:
    """Loss per target and metric of ``weights`` over the whole test split, unpadded."""
    distributed.start(run.site.device)
    device = torch.device(run.site.device)
    dtype = getattr(torch, run.recipe.dtype)
    task = tasks.load(run.task, data, dtype, device)
    model = models.build(run)
    checkpoint.load(model, weights)
    model.to(device).eval()
    loss = score = 0.0
    targets = 0
    for indices in order.in_order(task.samples("test"), run.recipe.evaluation_batch):
        batch = task.batch("test", indices)
        outputs = task.outputs(model, batch)
        loss += float(task.loss(outputs, batch))
        score += task.score(model, outputs, batch)
        targets += task.targets("test", indices)
    samples = task.samples("test")
    return TestReport(
        workload=run.workload,
        loss=loss / targets,
        untrained_loss=None,
        metric_name=task.metric_name,
        metric_value=task.metric(loss / targets, score, samples),
        samples=samples,
        targets=targets,
    )


if __name__ == "__main__":
    run_program(main)
