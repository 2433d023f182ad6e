"""A training on one rank, from its first step or from a checkpoint, to its files."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch

from shardlab import strategies
from shardlab.files import sha256
from shardlab.launch import signals
from shardlab.launch.attempts import history
from shardlab.measure import expected_traffic, flops
from shardlab.measure.step_profiler import Meter
from shardlab.records import metrics
from shardlab.records.manifest import Manifest
from shardlab.records.reports import train_report
from shardlab.records.timeline import Timeline
from shardlab.settings.devices import peak
from shardlab.settings.types import WARMUP_STEPS, Run
from shardlab.training import device, distributed, tasks
from shardlab.training.batches import PrefetchLoader, Steps
from shardlab.training.checkpoint import Checkpointer
from shardlab.training.deferred_metrics import DeferredMetrics
from shardlab.training.distributed import World
from shardlab.training.engine import Engine
from shardlab.training.heartbeat import Heartbeat
from shardlab.training.metrics import MetricsLog
from shardlab.training.resource_monitor import Usage
from shardlab.training.resume import initial_manifest, latest_checkpoint, restore
from shardlab.training.sample_audit import SampleAudit
from shardlab.training.step import ControlFlags, Observer, train_step
from shardlab.training.tasks import Task


class MonitoringOptions(NamedTuple):
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
    restart: bool = False,
    monitoring: MonitoringOptions = MonitoringOptions(),  # noqa: B008
    ready: Callable[[], None] | None = None,
) -> bool:
    """Train ``run`` on this rank, write its files to ``output`` (rank 0) and return whether it finished.

    If ``output`` has checkpoints of this run, training resumes from the newest valid one, unless ``restart``.
    ``resume`` names another checkpoint, written under any strategy on any number of ranks. ``origin`` describes the
    code and the image for the report. ``ready`` is called before the first step. Training ends early on a request to
    stop (see launch/signals.py).

    Raises:
        UserError: the loss or the gradient norm is not finite, or a file cannot be read or written.
    """
    if run.recipe.deterministic:
        device.deterministic()
    world = distributed.world(run)
    task = tasks.of_run(run, data, world.device)
    initial_digest = world.gather(sha256(weights) if world.is_rank0 else "")[0]
    start = initial_manifest(run, task, world, initial_digest)
    resume = resume or latest_checkpoint(output, start, world, restart=restart)
    if resume is None and world.is_rank0:
        shutil.rmtree(output / "checkpoints", ignore_errors=True)
    engine = strategies.build(run, task, world, weights)
    distributed.limit_groups(run.site.hang_seconds)
    steps = Steps(task, engine, run.recipe, run.seed, world)
    start = restore(start, engine, steps, resume, world, output)
    checkpointer = Checkpointer(run, task, engine, world, output, start)
    log = MetricsLog(output / metrics.NAME if world.is_rank0 else None, start.step, tensorboard=monitoring.tensorboard)
    log.attempt(start.step, steps.count, resume, world, origin)
    operations = _operations(run, task, steps, start.step, log) if world.is_rank0 else {}  # rank 0 logs and reports
    if ready:
        ready()
    state = TrainState(run, task, world, engine, steps, start, checkpointer, log)
    pending = _take_steps(state, output, monitoring, observe)
    if pending is None:
        return False
    meter, audit = pending
    measured = audit.check(task, world)
    measured |= {"identity": start.identity, "initial_weights": initial_digest}
    measured |= {"weights": checkpointer.save("model.safetensors")}
    measured |= operations | _figures(state, meter) | {"recomputed": run.recipe.activation_checkpointing}
    drawn = meter.drawn()
    if world.is_rank0:
        (output / "timeline.json").unlink(missing_ok=True)
        if meter.measures:
            Timeline(identity=start.identity, **drawn).write(output / "timeline.json")
        measured |= {key: value for key, value in origin.items() if key != "attempt"}
        lines = metrics.read(output / metrics.NAME)
        train_report(run.configured, lines, measured, history(output)).write(output / "train.json")
    return True


class TrainState(NamedTuple):
    """The components of a training."""

    run: Run
    task: Task
    world: World
    engine: Engine
    steps: Steps
    start: Manifest
    checkpointer: Checkpointer
    log: MetricsLog


def _take_steps(
    state: TrainState, output: Path, monitoring: MonitoringOptions, observe: Observer | None
) -> tuple[Meter, SampleAudit] | None:
    """Take the remaining steps; return measurements and sample counts, or None if stopped early (with a checkpoint)."""
    run, _, world, engine, steps, start, checkpointer, log = state
    requests = signals.Requests(output / signals.REQUEST if world.is_rank0 else None)
    audit = SampleAudit()
    with (
        Meter(engine, world, start.step, steps.count) as meter,
        Heartbeat(world, run.site.hang_seconds) as heartbeat,
        Usage(world, log, monitoring.usage_seconds, lambda: heartbeat.step),
        closing(log),
        PrefetchLoader(steps, world.device) as batches,
    ):
        look = _look(meter, observe)
        deferred = DeferredMetrics(log, checkpointer, skip=run.recipe.on_nonfinite == "skip")
        for number in range(start.step, steps.count):
            heartbeat.step = number
            with meter.step():
                step = batches[number]
                flags = ControlFlags(requests.requested() is not None, checkpointer.interval_elapsed())
                with meter.count(number):
                    pending = train_step(engine, step, world, look, flags, skip=deferred.skip)
                deferred.wait()
            audit.add(step)
            deferred.add(pending, meter.seconds)
            if step.validates:
                deferred.flush()
                log.validation(step, checkpointer.validate())
            stops = deferred.flags.stop and number + 1 < steps.count
            if stops or deferred.flags.checkpoint or checkpointer.due_at_step(number + 1):
                deferred.flush()
                checkpointer.checkpoint(number + 1)
                deferred.clear_flags()
            if stops:
                checkpointer.close()
                log.stopped(number, requests.requested() or "a signal on another rank")
                return None
        deferred.flush()
        checkpointer.close()
    return meter, audit


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


def _figures(state: TrainState, meter: Meter) -> dict[str, Any]:
    """Return what was measured and counted; a collective."""
    run, task, world, engine, steps, _, checkpointer, _ = state
    counted = min(meter.counted, steps.count - 1)
    theory = expected_traffic.bytes_per_step(run, task, steps[counted].micro_batches)
    return meter.figures() | {
        "parameters": engine.parameter_count,
        "checkpoints": checkpointer.written,
        "skipped_steps": checkpointer.skipped,
        "bytes_per_step_theory": world.mean(theory),
    }
