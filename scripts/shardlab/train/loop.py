"""A training on one rank, from its first step or from a checkpoint, to its files."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shardlab import parallel
from shardlab.errors import UserError
from shardlab.measure import flops
from shardlab.measure.step_profiler import Meter
from shardlab.models import expert_parameter_count
from shardlab.records import metrics
from shardlab.records.done import AVERAGED
from shardlab.records.manifest import Manifest
from shardlab.records.reports import initial_digest, initial_report
from shardlab.records.timeline import Timeline
from shardlab.records.train_report import train_report
from shardlab.runs import signals
from shardlab.runs.attempts import history
from shardlab.runtime import device, distributed, tasks
from shardlab.runtime.batches import PrefetchLoader, Step, Steps
from shardlab.runtime.distributed import World
from shardlab.runtime.engine import Engine
from shardlab.runtime.tasks import Task
from shardlab.settings import code_fingerprint
from shardlab.settings.model_rules import check_properties
from shardlab.settings.types import WARMUP_STEPS, Run
from shardlab.train.checkpoint import Checkpointer
from shardlab.train.heartbeat import Heartbeat
from shardlab.train.metrics_log import MetricsLog
from shardlab.train.resume import initial_manifest, latest_checkpoint, restore
from shardlab.train.step import NO_FLAGS, ControlFlags, Observer, PendingStep, StepMetrics, train_step


@dataclass(frozen=True)
class TrainOptions:
    """How to start and watch a training; none of it affects what a step computes."""

    resume: Path | None = None
    """Checkpoint to resume from, written under any strategy on any number of ranks; None: the newest valid one in the
    output folder."""
    restart: bool = False
    """Start at the first step and delete the output folder's checkpoints."""
    tensorboard: bool = False
    """Write TensorBoard event files."""
    on_start: Callable[[], None] | None = None
    """Called before the first step."""
    on_gradients: Observer | None = None
    """Called in each step between the backward pass and the update."""


@dataclass(frozen=True)
class TrainState:
    """The components of a training on this rank."""

    run: Run
    task: Task
    world: World
    engine: Engine
    steps: Steps
    start: Manifest
    """Where this process starts: the first step, or the checkpoint that it resumed from."""
    checkpointer: Checkpointer
    log: MetricsLog
    output: Path


class DeferredMetrics:
    """Metrics of the steps, read and logged one step late: they have reached the host by then, so the device never
    waits.
    """

    def __init__(self, log: MetricsLog, checkpointer: Checkpointer) -> None:
        self.log, self.checkpointer = log, checkpointer
        self.flags = NO_FLAGS
        """Requests of the ranks that are still pending."""
        self._pending: PendingStep | None = None
        self._metrics: StepMetrics | None = None
        self._seconds = 0.0

    def wait(self) -> None:
        """Wait for the step that was added last.

        Raises:
            UserError: see ``PendingStep.metrics``.
        """
        self._metrics = self._pending.metrics() if self._pending else None

    def add(self, pending: PendingStep | None, seconds: float = 0.0) -> None:
        """Add a step that was handed to the device, which took the host ``seconds``, and log the previous one."""
        if self._pending and self._metrics:
            step, metrics = self._pending.step, self._metrics
            self.log.step(step, metrics.loss, metrics.norm, self._seconds, **metrics.experts)
            self.checkpointer.skipped += not metrics.finite
            self.flags = ControlFlags(*(old or new for old, new in zip(self.flags, metrics.flags, strict=True)))
        self._pending, self._metrics, self._seconds = pending, None, seconds

    def flush(self) -> None:
        """Wait for all steps and log them: no weights are written before they are known to be finite.

        Raises:
            UserError: see ``PendingStep.metrics``.
        """
        self.wait()
        self.add(None)

    def clear_flags(self) -> None:
        self.flags = NO_FLAGS


class SampleAudit:
    """Samples and targets of the steps that this process took, against those that each rank put through its model."""

    def __init__(self) -> None:
        self.samples = self.targets = 0

    def add(self, step: Step) -> None:
        self.samples += step.samples
        self.targets += step.targets

    def check(self, task: Task, world: World) -> dict[str, Any]:
        """Return the samples and targets of each rank, under the names of TrainReport; a collective.

        Pipeline ranks without the model's output count nothing, ranks of a tensor-parallel group all count the same,
        and those of a context-parallel group the same samples.

        Raises:
            UserError: the ranks together did not train on each sample and target once.
        """
        ranks = world.gather((task.trained_samples, int(task.trained_targets)))
        samples, targets = zip(*ranks, strict=True)
        copies = world.dims.copies
        done = (sum(samples) / (copies * world.sequence.ranks), sum(targets) / copies)
        if done != (self.samples, self.targets):
            raise UserError(
                f"the ranks trained on {done[0]:g} samples and {done[1]:g} targets, but the batches had "
                f"{self.samples} and {self.targets}; the strategy or the task divides its batches wrongly, and "
                "nothing was saved."
            )
        return {"samples_per_rank": list(samples), "targets_per_rank": list(targets)}


def train(
    run: Run,
    data: Path,
    weights: Path,
    output: Path,
    origin: Mapping[str, Any],
    options: TrainOptions = TrainOptions(),
) -> bool:
    """Train ``run`` on this rank, write its files to ``output`` (rank 0) and return whether it finished.

    ``data`` is the prepared data set, ``weights`` the initial weights; ``origin`` describes the code and the image for
    the report. Training ends early, with a checkpoint, on a request to stop (see runs/signals.py).

    Raises:
        UserError: the loss or the gradient norm is not finite, or a file cannot be read or written.
    """
    state = set_up(run, data, weights, output, origin, options)
    operations = count_operations(state) if state.world.is_rank0 else {}  # rank 0 logs and reports
    if options.on_start:
        options.on_start()
    finished = take_steps(state, options)
    if finished is None:
        return False
    meter, audit = finished
    measured = audit.check(state.task, state.world)
    measured |= {"weights": state.checkpointer.save("model.safetensors")}
    if run.recipe.ema_decay is not None:
        measured |= {"ema_weights": state.checkpointer.save(AVERAGED, averaged=True)}
    measured |= operations | collect_measurements(state, meter)
    timeline = meter.report_timeline()  # a collective, like those above
    if state.world.is_rank0:
        write_reports(state, measured, timeline if meter.measures else None, origin)
    return True


def set_up(
    run: Run, data: Path, weights: Path, output: Path, origin: Mapping[str, Any], options: TrainOptions
) -> TrainState:
    """Build the model under the run's strategy and load the checkpoint to resume from, if there is one.

    Raises:
        UserError: see ``train``; or the code that is imported by then is not that of the run's settings.
    """
    if run.recipe.deterministic:
        device.deterministic()
    world = distributed.world(run)
    task = tasks.task_for(run, data, world.device)
    digest = world.gather(initial_digest(weights) if world.is_rank0 else "")[0]
    if report := initial_report(weights):  # a strategy that was added later is not one that they were drawn for
        check_properties(run, report.properties)
    start = initial_manifest(run, task, world, digest)
    resume = options.resume or latest_checkpoint(output, start, world, restart=options.restart)
    if resume is None and world.is_rank0:
        shutil.rmtree(output / "checkpoints", ignore_errors=True)
    engine = parallel.build(run, task, world, weights)
    engine.train(True)  # a model's own method may leave modules in evaluation mode, such as frozen batch norm
    code_fingerprint.check_unchanged(run.sources, run.model.sources)
    distributed.limit_groups(run.site.hang_seconds)
    steps = Steps(task, engine, run.recipe, run.seed, world)
    start = restore(start, engine, steps, resume, world, output)
    checkpointer = Checkpointer(run, task, engine, world, output, start)
    log = MetricsLog(output / metrics.NAME if world.is_rank0 else None, start.step, tensorboard=options.tensorboard)
    log.attempt(start.step, steps.count, resume, world, origin)
    return TrainState(run, task, world, engine, steps, start, checkpointer, log, output)


def take_steps(state: TrainState, options: TrainOptions) -> tuple[Meter, SampleAudit] | None:
    """Take the remaining steps; return measurements and sample counts, or None if stopped early (with a checkpoint)."""
    run, world, engine, steps, first = state.run, state.world, state.engine, state.steps, state.start.step
    log, checkpointer = state.log, state.checkpointer
    requests = signals.Requests(state.output / signals.REQUEST if world.is_rank0 else None)
    audit = SampleAudit()
    with (
        Meter(engine, world, first, steps.count) as meter,
        Heartbeat(world, run.site.hang_seconds) as heartbeat,
        closing(log),
        PrefetchLoader(steps, world.device) as batches,
    ):
        observe = _observe_gradients(meter, options.on_gradients)
        deferred = DeferredMetrics(log, checkpointer)
        for number in range(first, steps.count):
            heartbeat.step = number
            with meter.step():
                step = batches[number]
                flags = ControlFlags(requests.requested() is not None, checkpointer.interval_elapsed())
                with meter.count(number):
                    pending = train_step(engine, step, world, observe, flags)
                deferred.wait()
            audit.add(step)
            deferred.add(pending, meter.seconds)
            if step.validates:
                deferred.flush()
                log.validation(step, checkpointer.validate())
            unfinished = number + 1 < steps.count
            stops = deferred.flags.stop and unfinished
            if stops or deferred.flags.checkpoint or checkpointer.due_at_step(number + 1):
                deferred.flush()
                stops = deferred.flags.stop and unfinished  # a request may have arrived with this step's metrics
                checkpointer.checkpoint(number + 1)
                deferred.clear_flags()
            if stops:
                log.stopped(number, requests.requested() or "a signal on another rank")
                return None
        deferred.flush()
    return meter, audit


def count_operations(state: TrainState) -> dict[str, Any]:
    """Return the operations of a step, from the shapes of the counted one, and the peak FLOP/s of the devices."""
    run, task, steps, log = state.run, state.task, state.steps, state.log
    indices = steps.order.batch(min(state.start.step + WARMUP_STEPS, steps.count) - 1)
    # Only shapes are needed: don't copy a whole global batch to the device.
    on_cpu = tasks.task_for(run, task.folder, torch.device("cpu"))
    counted = flops.count_flops(run, task, on_cpu.micro_batch("train", indices))
    device_peak = flops.peak(device.name(task.device), run.recipe.arithmetic)
    if counted:
        log.flops_per_sample = counted / len(indices)
        log.peak_flops = (device_peak or 0.0) * run.world_size * run.devices_per_rank
    return {
        "flops_per_step": counted,
        "flops_formula": flops.FORMULA,
        "device_peak_flops": device_peak,
    }


def collect_measurements(state: TrainState, meter: Meter) -> dict[str, Any]:
    """Return what was measured and counted; a collective."""
    return meter.figures() | {
        "identity": state.start.identity,
        "initial_weights": state.start.training["initial_weights"],
        "recomputed": state.run.recipe.activation_checkpointing,
        "parameters": state.engine.parameter_count,
        "expert_parameters": expert_parameter_count(state.engine.run.model, state.engine.meta_state_dict),
        "split_share": getattr(state.engine, "split_share", None),
        "checkpoints": state.checkpointer.written,
        "skipped_steps": state.checkpointer.skipped,
    }


def write_reports(
    state: TrainState,
    measured: dict[str, Any],
    drawn: dict[str, Any] | None,
    origin: Mapping[str, Any],
) -> None:
    """Write train.json and, if a step was profiled, timeline.json."""
    output = state.output
    (output / "timeline.json").unlink(missing_ok=True)
    if drawn is not None:
        Timeline(identity=state.start.identity, **drawn).write(output / "timeline.json")
    measured = measured | {key: value for key, value in origin.items() if key != "attempt"}
    lines = metrics.read(output / metrics.NAME)
    tries = history(output, state.start.identity.numbers)
    train_report(state.run, lines, measured, tries).write(output / "train.json")


def _observe_gradients(meter: Meter, observe: Observer | None) -> Observer:
    """Return the observer to call between the backward pass and the update."""

    def observed(number: int, engine: Engine) -> None:
        meter.assign_kinds(number)
        if observe:
            observe(number, engine)

    return observed
