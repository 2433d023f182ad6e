#!/usr/bin/env python3
"""Train one run: the rank's program, started by launch.py (under torchrun where there are several ranks)."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from shardlab import strategies
from shardlab.errors import run_program
from shardlab.files import read_json, write_json
from shardlab.launch import slurm
from shardlab.launch.images import read_report
from shardlab.measure import expected_traffic
from shardlab.measure.meter import Meter
from shardlab.report.records import train_report
from shardlab.settings.types import Run, read_run
from shardlab.training import checkpoint, distributed, metrics, tasks
from shardlab.training.batches import Steps
from shardlab.training.checkpoint import Checkpointer
from shardlab.training.metrics import MetricsLog
from shardlab.training.step import Observer, train_step


def main() -> None:
    """Read the frozen settings, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="initial weights, the same for every strategy")
    parser.add_argument("--output", type=Path, required=True, help="folder for weights, metrics and train.json")
    parser.add_argument("--resume", type=Path, help="checkpoint to resume from, of any strategy on any ranks")
    parser.add_argument("--commit", help="commit of the working tree, for train.json")
    parser.add_argument("--image", type=Path, help="report of the image that this runs in, for train.json")
    args = parser.parse_args()

    run = read_run(args.settings)
    distributed.start(run.site.device)
    origin: dict[str, Any] = {"git_commit": args.commit, "slurm_job_id": slurm.job_id()}
    if args.image:
        image = read_report(args.image)
        origin |= {"image_digest": image.sha256, "image_labels": image.labels}
    train(run, args.data, args.weights, args.output, origin, resume=args.resume)
    distributed.finish()


def train(
    run: Run,
    data: Path,
    weights: Path,
    output: Path,
    origin: Mapping[str, Any],
    observe: Observer | None = None,
    resume: Path | None = None,
) -> None:
    """Train ``run`` on this rank and write its files to ``output`` (rank 0).

    ``origin`` is what the report says of the code and the image that this runs from; with ``resume`` the training
    goes on from that checkpoint.

    Raises:
        UserError: the loss or the gradient norm is not finite, or a file cannot be read or written.
    """
    world = distributed.world(run.mesh, run.site.device)
    torch.manual_seed(run.seed + world.data_rank)  # dropout: the same on the ranks that share samples
    dtype = getattr(torch, run.recipe.dtype)
    task = tasks.load(run.task, data, dtype, world.device, fixed_shapes=run.mesh.pipelined)
    engine = strategies.build(run, task, world, resume / "model.safetensors" if resume else weights)
    steps = Steps(task, engine, run.recipe, run.seed, world)
    start = checkpoint.restore(run, engine, steps, resume, world)
    checkpointer = Checkpointer(run, task, engine, world, output, start.best)
    log = MetricsLog(output / "metrics.jsonl" if world.main else None, start.step)

    with Meter(engine, world, start.step, steps.count) as meter:
        for number in range(start.step, steps.count):
            with meter.step(number):
                step = steps[number]
                loss, norm = train_step(engine, step, world, observe)
            log.step(step, loss, norm, meter.seconds)
            if step.validates:
                log.write("validation", step=number, epoch=step.epoch, loss=checkpointer.validate())
            if checkpointer.is_due(number + 1):
                checkpointer.checkpoint(number + 1)
    checkpointer.save("model.safetensors")

    theory = expected_traffic.bytes_per_step(run, task, steps[meter.counted].micro_batches)
    measured = {
        **origin,
        **meter.figures(),
        "parameters": engine.parameter_count,
        "checkpoints": checkpointer.written,
        "bytes_per_step_theory": world.mean(theory),
        "data_fingerprint": read_json(data / "dataset.json", "data set", "prepare it")["fingerprint"],
    }
    if world.main:
        report = train_report(run, metrics.read(output / "metrics.jsonl"), measured)
        write_json(output / "train.json", report.model_dump())


if __name__ == "__main__":
    run_program(main)
