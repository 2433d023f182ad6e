#!/usr/bin/env python3
"""Train one run: the rank's program, started by launch.py (under torchrun where there are several ranks)."""

import argparse
import math
import os
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardlab import strategies
from shardlab.data import order
from shardlab.errors import UserError, run_program
from shardlab.files import read_json, write_json
from shardlab.launch.images import read_report
from shardlab.measure import expected_traffic
from shardlab.measure.traffic import Traffic
from shardlab.report import records
from shardlab.settings.types import Run, read_run
from shardlab.training import batches, checkpoint, distributed, evaluation, optimizers, tasks
from shardlab.training.checkpoint import State
from shardlab.training.distributed import World
from shardlab.training.engine import Engine
from shardlab.training.metrics import MetricsLog
from shardlab.training.tasks import MicroBatch, Task

Observer = Callable[[int, Engine], None]


def main() -> None:
    """Read the frozen settings, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="initial weights, the same for every strategy")
    parser.add_argument("--output", type=Path, required=True, help="folder for weights, metrics and train.json")
    parser.add_argument("--resume", type=Path, help="checkpoint to continue from, of any strategy on any ranks")
    parser.add_argument("--commit", help="commit of the working tree, for train.json")
    parser.add_argument("--image", type=Path, help="report of the image that this runs in, for train.json")
    args = parser.parse_args()

    run = read_run(args.settings)
    distributed.start(run.site.device)
    origin: dict[str, Any] = {"git_commit": args.commit}
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

    ``origin`` is what the report says of the code and the image that this runs from; ``observe(step, engine)`` is
    called between backward and update, on every rank; with ``resume`` the training goes on from that checkpoint.

    Raises:
        UserError: the loss or the gradient norm is not finite, or a file cannot be read or written.
    """
    recipe = run.recipe
    world = distributed.world(run)
    dtype = getattr(torch, recipe.dtype)
    torch.manual_seed(run.seed + world.data_rank)  # dropout: the same on the ranks that share samples
    task = tasks.load(run.task, data, dtype, world.device, fixed_shapes="pp" in run.mesh)
    engine = strategies.build(run, task, world, resume / "model.safetensors" if resume else weights)

    sequence = order.BatchOrder(task.samples("train"), recipe.global_batch, run.seed)
    steps = recipe.epochs * sequence.steps_per_epoch
    steps = min(steps, recipe.max_steps or steps)
    log = MetricsLog(output / "metrics.jsonl" if world.main else None)
    start = restore(run, task, engine, resume, steps, world) if resume else State(step=0, best=None, **origin_of(run))
    keeper = Checkpointer(run, task, engine, world, output, start.best)
    traffic, counted = Traffic(world), min(start.step + 2, steps - 1)
    begin = time.perf_counter()

    for step in range(start.step, steps):
        started = time.perf_counter()
        epoch = step // sequence.steps_per_epoch
        batch = sequence.batch(step)
        targets = task.targets("train", batch)
        rate = optimizers.learning_rate(recipe, epoch)
        micro_batches = batches.share(task, engine, "train", batch, recipe.global_batch, recipe.accumulate, world)
        with traffic if step == counted else nullcontext():
            loss, norm = train_step(engine, micro_batches, targets, rate, step, world, observe)
        if step == counted:
            engine.idle()  # the steps before also set things up: what is measured begins here
            theory = expected_traffic.bytes_per_step(run, task, micro_batches)

        seconds = time.perf_counter() - started
        values = {"loss": loss, "grad_norm": norm, "learning_rate": rate, "seconds": seconds}
        log.write("train", step=step, epoch=epoch, samples=len(batch), targets=targets, **values)
        if (step + 1) % sequence.steps_per_epoch == 0 or step + 1 == steps:
            log.write("validation", step=step, epoch=epoch, loss=keeper.validate())
        if recipe.checkpoint_every and (step + 1) % recipe.checkpoint_every == 0:
            keeper.checkpoint(step + 1)

    wall = time.perf_counter() - begin
    keeper.save("model.safetensors")
    figures = {
        "parameters": engine.parameter_count,
        "wall_seconds": wall,
        "checkpoints": keeper.written,
        "traffic": traffic.report(world),
        "bytes_per_step_theory": world.mean(theory),
    }
    write_report(run, engine, world, log, data, output / "train.json", {**origin, **figures})


def origin_of(run: Run) -> dict[str, Any]:
    """What a checkpoint must share with the run that continues it."""
    return {"workload": run.workload, "seed": run.seed}


def restore(run: Run, task: Task, engine: Engine, folder: Path, steps: int, world: World) -> State:
    """Read a checkpoint into an engine that has its weights; returns where the training stands.

    Raises:
        UserError: the checkpoint is damaged, of another workload, seed or optimizer, or has all ``steps`` behind it.
    """
    state = checkpoint.read_state(folder)
    if (theirs := {"workload": state.workload, "seed": state.seed}) != origin_of(run):
        raise UserError(f"{folder} is a checkpoint of {theirs}, this run is {origin_of(run)}; continue with the same.")
    if state.step >= steps:
        raise UserError(f"{folder} stands at step {state.step} of {steps}, so nothing is left; raise recipe.max_steps.")
    # A step that changes nothing makes the optimizer's tensors, whatever engine it is: no sample, learning rate 0.
    nothing = np.empty(0, dtype=np.int64)
    micro_batches = batches.share(task, engine, "train", nothing, run.recipe.global_batch, run.recipe.accumulate, world)
    train_step(engine, micro_batches, 1, 0.0, -1, world, None)
    checkpoint.load_optimizer(engine, folder)
    return state


def train_step(
    engine: Engine,
    micro_batches: list[MicroBatch],
    targets: int,
    rate: float,
    step: int,
    world: World,
    observe: Observer | None,
) -> tuple[float, float]:
    """One optimizer step: loss per target of the whole global batch, and gradient norm."""
    losses = [
        # Engines average over the data-parallel ranks; the loss is a sum over all of them.
        engine.add_gradients(micro, world.data_size / targets, last=number == len(micro_batches))
        for number, micro in enumerate(micro_batches, 1)
    ]
    loss = float(world.sum(torch.stack(losses).sum())) / targets
    stop_unless_finite("loss", loss, step)
    if observe:
        observe(step, engine)
    norm = engine.step(rate)
    stop_unless_finite("gradient norm", norm, step)
    return loss, norm


def stop_unless_finite(what: str, value: float, step: int) -> None:
    """Raise a UserError that names the step; every rank has the same value, so all of them stop."""
    if not math.isfinite(value):
        raise UserError(
            f"the {what} of step {step} is {value}; training stopped and no weights were saved. Lower "
            "recipe.learning_rate or set recipe.clip_norm."
        )


class Checkpointer:
    """Validates one run and writes its weights and checkpoints; every method is a collective."""

    def __init__(self, run: Run, task: Task, engine: Engine, world: World, output: Path, best: float | None) -> None:
        """``best`` is the lowest validation loss so far, None at the start."""
        self.run, self.task, self.engine, self.world, self.output = run, task, engine, world, output
        self.best = best
        self.written = 0

    def validate(self) -> float:
        """Loss per target over the validation split; with recipe.keep_best, the best weights are written."""
        recipe = self.run.recipe
        loss = evaluation.mean_loss(self.task, self.engine, "validation", recipe.evaluation_batch, self.world)
        if recipe.keep_best and (self.best is None or loss < self.best):
            self.best = loss
            self.save("best.safetensors")
        return loss

    def checkpoint(self, step: int) -> None:
        """Write what a training needs to go on from ``step`` steps, in place of the checkpoint before."""
        state = State(step=step, best=self.best, **origin_of(self.run))
        checkpoint.save_state(self.engine, self.output / "checkpoint", state, main=self.world.main)
        self.written += 1

    def save(self, name: str) -> None:
        """Write the whole weights (rank 0)."""
        checkpoint.save_whole(self.engine, self.output / name, main=self.world.main)
        self.written += 1


def write_report(
    run: Run, engine: Engine, world: World, log: MetricsLog, data: Path, path: Path, figures: Mapping[str, Any]
) -> None:
    """Write train.json (rank 0); a collective, as every rank's host and peak memory are in it."""
    on_gpu = world.device.type == "cuda"
    # On a CPU: what the whole process had resident, in KiB.
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    idle = [fraction for fractions in world.gather(engine.idle()) for fraction in fractions or []]
    measured = {
        **figures,
        "idle": idle or None,
        "hosts": world.gather(os.uname().nodename),
        "devices": [torch.cuda.get_device_name() if on_gpu else "cpu"],
        "peak_memory_bytes": world.gather(peak),
        "peak_memory_kind": "CUDA allocated" if on_gpu else "process RSS",
        "data_fingerprint": read_json(data / "dataset.json", "data set", "prepare it")["fingerprint"],
    }
    if world.main:
        write_json(path, records.train_report(run, log.records, measured).model_dump())


if __name__ == "__main__":
    run_program(main)
