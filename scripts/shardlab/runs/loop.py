"""A training on one rank, from its first step or from a checkpoint, to its files."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch

from shardlab import strategies
from shardlab.files import sha256
from shardlab.launch import processes
from shardlab.launch.attempts import history
from shardlab.measure import expected_traffic, flops
from shardlab.measure.meter import Meter
from shardlab.report import metrics
from shardlab.report.manifest import Manifest
from shardlab.report.records import train_report
from shardlab.report.timeline import Timeline
from shardlab.settings.devices import peak
from shardlab.settings.types import WARMUP_STEPS, Run
from shardlab.training import device, distributed, tasks
from shardlab.training.batches import Ahead, Steps
from shardlab.training.behind import Behind
from shardlab.training.checkpoint import Checkpointer
from shardlab.training.distributed import World
from shardlab.training.engine import Engine
from shardlab.training.heartbeat import Heartbeat
from shardlab.training.metrics import MetricsLog
from shardlab.training.resume import beginning, newest, restore
from shardlab.training.step import Observer, Wish, train_step
from shardlab.training.tasks import Task
from shardlab.training.usage import Usage
from shardlab.training.work import Work


class Watched(NamedTuple):
    """Monitoring options of a training; they do not affect its result."""

    usage_seconds: float | None = None
    """Interval between samples of resource use, in seconds; None: no samples."""
    tensorboard: bool = False
    """Write TensorBoard event files."""


def train(
    run: Run,
    data: Path,
    weights: Path,
    output: Path,
    origin: Mapping[str, Any],
    observe: Observer | None = None,
    resume: Path | None = None,
    *,
    afresh: bool = False,
    watched: Watched = Watched(),  # noqa: B008
    ready: Callable[[], None] | None = None,
    recompute: str | None = None,
) -> bool:
    """Train ``run`` on this rank, write its files to ``output`` (rank 0) and return whether it finished.

    If ``output`` has checkpoints of this run, training resumes from the newest valid one, unless ``afresh``; ``resume``
    names another checkpoint, written under any strategy on any number of ranks. ``origin`` describes the code and the
    image for the report. ``ready`` is called before the first step. ``recompute`` is the mode that
    activation_checkpointing: auto resolved to; it does not affect the result. Training ends early on a request to stop
    (see launch/processes.py).

    Raises:
        UserError: the loss or the gradient norm is not finite, or a file cannot be read or written.
    """
    if run.recipe.deterministic:
        device.deterministic()
    world = distributed.world(run)
    task = tasks.of_run(run, data, world.device)
    begun_with = world.gather(sha256(weights) if world.main else "")[0]
    start = beginning(run, task, world, begun_with)
    resume = resume or newest(output, start, world, afresh=afresh)
    if resume is None and world.main:
        shutil.rmtree(output / "checkpoints", ignore_errors=True)
    asked = run
    if recompute:
        run = run.model_copy(update={"recipe": run.recipe.model_copy(update={"activation_checkpointing": recompute})})
    engine = strategies.build(run, task, world, weights)
    distributed.limit_groups(run.site.hang_seconds)
    steps = Steps(task, engine, run.recipe, run.seed, world)
    start = restore(start, engine, steps, resume, world, output)
    checkpointer = Checkpointer(run, task, engine, world, output, start)
    log = MetricsLog(output / metrics.NAME if world.main else None, start.step, tensorboard=watched.tensorboard)
    log.attempt(start.step, steps.count, resume, world, origin)
    operations = _operations(run, task, steps, start.step, log) if world.main else {}  # rank 0 logs and reports
    if ready:
        ready()
    parts = Parts(run, task, world, engine, steps, start, checkpointer, log)
    taken = _take_steps(parts, output, watched, observe)
    if taken is None:
        return False
    meter, read = taken
    measured = read.check(task, world)
    measured |= {"identity": start.identity, "initial_weights": begun_with}
    measured |= {"weights": checkpointer.save("model.safetensors")}
    measured |= operations | _figures(parts, meter) | {"recomputed": run.recipe.activation_checkpointing}
    drawn = meter.drawn()
    if world.main:
        (output / "timeline.json").unlink(missing_ok=True)
        if meter.measures:
            Timeline(identity=start.identity, **drawn).write(output / "timeline.json")
        measured |= {key: value for key, value in origin.items() if key != "attempt"}
        lines = metrics.read(output / metrics.NAME)
        train_report(asked, lines, measured, history(output)).write(output / "train.json")
    return True


class Parts(NamedTuple):
    """The components of a training."""

    run: Run
    task: Task
    world: World
    engine: Engine
    steps: Steps
    start: Manifest
    checkpointer: Checkpointer
    log: MetricsLog


def _take_steps(parts: Parts, output: Path, watched: Watched, observe: Observer | None) -> tuple[Meter, Work] | None:
    """Take the remaining steps; return measurements and sample counts, or None if stopped early (with a checkpoint)."""
    run, _, world, engine, steps, start, checkpointer, log = parts
    requests = processes.Requests(output / processes.REQUEST if world.main else None)
    read = Work()
    with (
        Meter(engine, world, start.step, steps.count) as meter,
        Heartbeat(world, run.site.hang_seconds) as heart,
        Usage(world, log, watched.usage_seconds, lambda: heart.step),
        closing(log),
        Ahead(steps, world.device) as ahead,
    ):
        look = _look(meter, observe)
        behind = Behind(log, checkpointer, skip=run.recipe.non_finite == "skip")
        for number in range(start.step, steps.count):
            heart.step = number
            with meter.step():
                step = ahead[number]
                wish = Wish(requests.asked() is not None, checkpointer.is_old())
                with meter.count(number):
                    taken = train_step(engine, step, world, look, wish, skip=behind.skip)
                behind.wait()
            read.add(step)
            behind.add(taken, meter.seconds)
            if step.validates:
                behind.catch_up()
                log.validation(step, checkpointer.validate())
            stops = behind.wish.stop and number + 1 < steps.count
            if stops or behind.wish.checkpoint or checkpointer.is_due(number + 1):
                behind.catch_up()
                checkpointer.checkpoint(number + 1)
                behind.granted()
            if stops:
                checkpointer.close()
                log.stopped(number, requests.asked() or "a signal on another rank")
                return None
        behind.catch_up()
        checkpointer.close()
    return meter, read


def _operations(run: Run, task: Task, steps: Steps, first: int, log: MetricsLog) -> dict[str, Any]:
    """Return the operations of a step, from the shapes of the counted one, and the peak FLOP/s of the devices."""
    indices = steps.order.batch(min(first + WARMUP_STEPS, steps.count) - 1)
    # Only shapes are needed: don't copy a whole global batch to the device.
    on_cpu = tasks.of_run(run, task.folder, torch.device("cpu"))
    counted = flops.of_step(run, task, on_cpu.micro_batch("train", indices))
    of_device = peak(device.name(task.device), run.recipe.dtype, run.recipe.precision)
    if counted:
        log.flops_per_sample = counted.step / len(indices)
        log.peak_flops = (of_device or 0.0) * run.world_size * run.devices_per_rank
    return {
        "flops_per_step": counted and counted.step,
        "flops_per_step_causal": counted and counted.causal,
        "flops_formula": flops.FORMULA,
        "device_peak_flops": of_device,
    }


def _look(meter: Meter, observe: Observer | None) -> Observer:
    """Return the observer to call between the backward pass and the update."""

    def look(number: int, engine: Engine) -> None:
        meter.look(number)
        if observe:
            observe(number, engine)

    return look


def _figures(parts: Parts, meter: Meter) -> dict[str, Any]:
    """Return what was measured and counted; a collective."""
    run, task, world, engine, steps, _, checkpointer, _ = parts
    counted = min(meter.counted, steps.count - 1)
    theory = expected_traffic.bytes_per_step(run, task, steps[counted].micro_batches)
    return meter.figures() | {
        "parameters": engine.parameter_count,
        "checkpoints": checkpointer.written,
        "skipped_steps": checkpointer.skipped,
        "bytes_per_step_theory": world.mean(theory),
    }
