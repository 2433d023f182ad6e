"""What the stages report: train.json and test.json, one definition each."""

import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from shardlab.errors import UserError
from shardlab.files import read_json, write_json
from shardlab.schema import Strict, check
from shardlab.settings.identity import Identity, digest
from shardlab.settings.types import WARMUP_STEPS, Run

FIRST_STEPS = 4
"""Steps whose losses are compared: in these, rounding has not had time to grow."""
ROUNDING_SIZE = 6e-8
"""Half the distance of 1 to the next float32 (2^-24): the relative error of one rounding."""
LATER = f"the first {WARMUP_STEPS} steps left out"


class Report(Strict):
    """A file of results. Its seal shows whether it is what the stage wrote."""

    seal: str = Field("", description="SHA-256 of the other keys: an edited or damaged file is refused.")

    def write(self, path: Path) -> None:
        """Write it, sealed."""
        write_json(path, self.model_dump() | {"seal": self._digest()})

    @classmethod
    def read(cls, path: Path, remedy: str) -> Self:
        """The report in a file.

        Raises:
            UserError: it is missing, damaged, of another version, or was edited; the sentence ends with ``remedy``.
        """
        values = read_json(path, "report", remedy)
        try:
            report = check(cls, values, str(path))
        except UserError as error:
            raise UserError(f"{error} It is damaged or of another version; {remedy}.") from None
        if report.seal != report._digest():
            raise UserError(f"{path} is not what the stage wrote (its seal does not fit); {remedy}.")
        return report

    def _digest(self) -> str:
        return digest(self.model_dump(mode="json", exclude={"seal"}))


class Traffic(Strict):
    """What one collective moves along one mesh axis."""

    axis: str = Field(description="Mesh axis; world: all ranks.")
    collective: str = Field(description="Collective.")
    bytes: float = Field(description="Bytes that a rank sends in a step (mean over the ranks).")


Kind = Literal["weights", "master_weights", "gradients", "optimizer", "activations", "gathered", "other"]
Kinds = dict[Kind, int]


class TensorBytes(Strict):
    """Bytes of a rank's tensors in one step, by kind: exact, and what a GPU's allocator would have to hold."""

    peak: int = Field(description="Largest sum of all kinds at a time.")
    at_peak: Kinds = Field(description="What the peak consisted of.")
    largest: Kinds = Field(
        description="The most that each kind became, not all at once. master_weights: the optimizer's own copy of "
        "the weights, in float32, where it is not the weights themselves; gathered: whole weights or activations that "
        "other ranks sent parts of; other: among them gradients of activations."
    )


class Attempt(Strict, frozen=False):
    """One start of a run's training."""

    number: int = Field(description="Counted from 1.")
    call: str | None = Field(description="Which call of Snakemake it belongs to.")
    began: str = Field(description="When, in UTC.")
    ended: str | None = Field(None, description="When; null while it lives, and for the one that wrote the report.")
    host: str = Field(description="Where launch.py ran.")
    slurm_job_id: str | None = Field(description="Slurm job; null without Slurm.")
    from_step: int | None = Field(None, description="Its first step; null if it came to none.")
    first_step_at: str | None = Field(None, description="When it was ready for that, in UTC; null if it came to none.")
    reached: int | None = Field(None, description="Steps behind the training at its end.")
    saved: int | None = Field(None, description="Steps behind the newest checkpoint at its end; null without one.")
    why: str = Field("", description="Why it ended.")

    @property
    def failed(self) -> bool:
        """Whether it ended by a mistake, not by a request or a kill."""
        return not self.why.startswith(("finished", "stopped", "lost"))

    @property
    def progress(self) -> bool:
        """Whether a checkpoint was written in it."""
        return self.saved is not None and self.saved > (self.from_step or 0)


class FirstStep(Strict):
    """A step at the beginning, before rounding can grow; null where it was not finite."""

    loss: float | None = Field(description="Loss per target of the global batch.")
    grad_norm: float | None = Field(description="Global L2 norm of the gradient, before clipping.")


class TrainReport(Report):
    """train.json: how a run went. A figure that was not measured is null."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    identity: Identity = Field(description="Which run this belongs to.")
    settings: dict[str, Any] = Field(description="run.json as it was trained with.")
    initial_weights: str = Field(description="SHA-256 of the weights that it started from.")
    weights: str = Field(description="SHA-256 of model.safetensors.")
    strategy: str = Field(description="Strategy.")
    workload: str = Field(description="Workload.")
    mesh: dict[str, int] = Field(description="Mesh axis: degree; empty for one rank.")
    world_size: int = Field(description="Ranks.")
    nodes: int = Field(description="Nodes.")
    hosts: list[str] = Field(description="Host name of each rank.")
    devices: list[str] = Field(description="Kinds of device that the ranks used.")
    parameters: int = Field(description="Trainable values of the whole model.")
    steps: int = Field(description="Optimizer steps.")
    samples: int = Field(description="Training samples read, over all steps.")
    targets: int = Field(description="Training targets, over all steps.")
    samples_per_rank: list[int] = Field(
        description="Samples that each rank put through its model, since it started; 0 where a pipeline stage does "
        "not have the output."
    )
    targets_per_rank: list[int] = Field(description="Targets of these samples.")
    train_loss: float = Field(description="Loss of the last step's batch.")
    first_steps: list[FirstStep] = Field(description=f"The first {FIRST_STEPS} steps.")
    learned_nothing: str | None = Field(
        None, description="Reason why the run cannot have learned anything; null if it may have."
    )
    validation_loss: float = Field(description="Loss on the validation split after the last epoch.")
    wall_seconds: float = Field(
        description="Training loop with validation, without start-up and saving; of earlier attempts their steps."
    )
    step_seconds_median: float | None = Field(description=f"Median step, {LATER}.")
    step_seconds_p95: float | None = Field(description=f"95th percentile step, {LATER}.")
    samples_per_second: float | None = Field(description=f"Samples over the steps' time, {LATER}.")
    idle: list[float] | None = Field(
        None,
        description=f"Part of the forward and backward passes, {LATER}, in which a rank (pp) or "
        "a device (mp) waited for others; null where the strategy does not measure it.",
    )
    idle_theory: float | None = Field(
        None,
        description="pp: the bubble (p - 1) / (m + p - 1) with m micro-batches (times the stages of a rank) on p "
        "ranks; null for zero bubble.",
    )
    flops_per_step: int | None = Field(
        description="Floating-point operations of a step over all ranks, by flops_formula; null for a model that "
        "cannot be run over shapes alone."
    )
    flops_per_step_causal: int | None = Field(description="The same without what causal attention masks.")
    flops_formula: str = Field(description="How they were counted.")
    device_peak_flops: float | None = Field(
        description="Peak of a device in the run's arithmetic, from its data sheet (FLOP/s); null where not known."
    )
    mfu: float | None = Field(
        None,
        description="Model FLOP utilization: flops_per_step, over the median step and the peak of all devices; null "
        "where that is not known.",
    )
    recomputed: str | None = Field(None, description="What was recomputed: the recipe's, or what auto came to.")
    attention: str | None = Field(
        None,
        description="Kernel of attention: flash, efficient, cudnn, overrideable, or math, which is none; null for a "
        "model without attention, or if no step was measured.",
    )
    tensor_bytes: list[TensorBytes] | None = Field(
        description="Tensors of each rank in a step, on the fullest of its devices; null, like the next ones, for a "
        "run that resumed at its last step."
    )
    peak_memory_bytes: list[int] | None = Field(description="Peak memory of each rank.")
    peak_memory_kind: Literal["process RSS", "CUDA allocated"] = Field(description="What was measured.")
    bytes_per_step: float | None = Field(description="Bytes that a rank sends in a step (mean over the ranks).")
    bytes_per_step_theory: float | None = Field(
        description="The same from sizes and shapes alone; null where no formula is known."
    )
    traffic: list[Traffic] | None = Field(description="bytes_per_step by mesh axis and collective.")
    checkpoints: int = Field(description="Checkpoints written, best.safetensors included.")
    attempts: list[Attempt] = Field(default=[], description="All attempts at the run, this one last.")
    lost_steps: int = Field(0, description="Steps that were taken again, as an attempt ended behind its checkpoint.")
    skipped_steps: int = Field(0, description="Steps left out, as loss or gradient was not finite.")
    image_digest: str | None = Field(None, description="SHA-256 of the container image; null without one.")
    image_labels: dict[str, str] = Field(
        default={}, description="The image's labels: versions, git commit, hash of the lock file."
    )
    slurm_job_id: str | None = Field(None, description="Slurm job; null without Slurm.")
    git_commit: str | None = Field(None, description="Commit of the working tree, with -dirty if changed.")
    versions: dict[str, str] = Field(description="Versions of what took part.")

    def held(self, kind: Kind | None = None) -> int | None:
        """Most bytes that a rank held of a kind, or of all at a time; None if that was not measured."""
        if self.tensor_bytes is None:
            return None
        return max(rank.largest[kind] if kind else rank.peak for rank in self.tensor_bytes)


class Evaluated(Strict):
    """Weights over the whole test split, each sample exactly once."""

    workload: str = Field(description="Workload.")
    loss: float = Field(description="Mean loss per target over the test split.")
    evaluation: Literal["whole", "sharded"] = Field(description="On one device, or under the run's own strategy.")
    metric_name: str = Field(description="The metric that a person reads.")
    metric_value: float | None = Field(description="Its value; null where sharded evaluation does not give it.")
    samples: int = Field(description="Test samples.")
    targets: int = Field(description="Test targets.")


class TestReport(Evaluated, Report):
    """test.json: the consolidated weights, and what they are."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    identity: Identity = Field(description="Which run this belongs to.")
    weights: str = Field(description="SHA-256 of the weights that were evaluated.")
    untrained_loss: float | None = Field(description="Loss of the initial weights; null after a sharded evaluation.")


class InitialReport(Report):
    """init/WORKLOAD.json: the initial weights that all runs of a workload start from."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    identity: Identity = Field(description="Which workload, over which data, this belongs to.")
    weights: str = Field(description="SHA-256 of the weights.")
    parameters: int = Field(description="Trainable values.")
    loss: float | None = Field(
        description="Mean loss per target over the test split; null where runs are evaluated sharded, as one device "
        "may not hold the model."
    )


class Twin(Strict):
    """A training of ``single`` from initial weights that were changed by about one rounding."""

    validation_loss: float = Field(description="Loss on the validation split after the last epoch.")
    test_loss: float = Field(description="Mean loss per target over the test split.")


class TwinsReport(Report):
    """twins/WORKLOAD.json: how far rounding alone carries a workload's training."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    identity: Identity = Field(description="Of the `single` whose twins they are.")
    initial_weights: str = Field(description="SHA-256 of the weights that were changed.")
    workload: str = Field(description="Workload.")
    scale: float = Field(description="Relative size of the change: each weight times 1 + scale N(0, 1).")
    twins: list[Twin] = Field(description="One for each draw.")


def train_report(
    run: Run, records: list[dict[str, Any]], measured: dict[str, Any], attempts: Sequence[Attempt] = ()
) -> TrainReport:
    """The report of a run from its settings, its metrics records, its attempts and what was ``measured`` besides."""
    told = [record for record in records if record["kind"] == "attempt"]
    begun = told[-1]["step"] if told else 0
    attempts = [attempt.model_copy() for attempt in attempts]
    if attempts:
        attempts[-1].why, attempts[-1].from_step, attempts[-1].reached = "finished", begun, records[-1]["step"] + 1
        attempts[-1].first_step_at = told[-1]["time"]
    steps = [record for record in records if record["kind"] == "train"]
    sent = measured["traffic"]
    return TrainReport.model_validate(
        {
            "settings": run.model_dump(mode="json"),
            "strategy": run.strategy,
            "workload": run.workload,
            "mesh": run.mesh.root,
            "world_size": run.world_size,
            "nodes": run.nodes,
            "steps": len(steps),
            "samples": sum(record["samples"] for record in steps),
            "targets": sum(record["targets"] for record in steps),
            "bytes_per_step": None if sent is None else sum(entry["bytes"] for entry in sent),
            "first_steps": [{key: record[key] for key in FirstStep.model_fields} for record in steps[:FIRST_STEPS]],
            "learned_nothing": _learned_nothing(steps),
            "train_loss": next(record["loss"] for record in reversed(steps) if record["loss"] is not None),
            "validation_loss": [record["loss"] for record in records if record["kind"] == "validation"][-1],
        }
        | {"idle_theory": _bubble(run)}
        | (times := _step_statistics(steps[WARMUP_STEPS:]))
        | {"mfu": _utilization(run, measured, times["step_seconds_median"])}
        | _provenance()
        | measured
        | {
            "wall_seconds": measured["wall_seconds"] + sum(each["seconds"] for each in steps if each["step"] < begun),
            "attempts": attempts,
            "lost_steps": _lost(attempts),
        }
    )


def _learned_nothing(steps: list[dict[str, Any]]) -> str | None:
    """Two runs that learned nothing have equal losses whatever their strategies do."""
    norms, losses = ({record[key] for record in steps} - {None} for key in ("grad_norm", "loss"))
    if norms == {0.0}:
        return "its gradient norm is always 0"
    if len(losses) == 1 and len(steps) > 1:
        return "its loss never changes"
    return None


def _utilization(run: Run, measured: dict[str, Any], seconds: float | None) -> float | None:
    """Chowdhery et al., 2022, arXiv:2204.02311, appendix B."""
    peak = measured["device_peak_flops"]
    if peak is None or seconds is None or measured["flops_per_step"] is None:
        return None
    return float(measured["flops_per_step"] / seconds / (peak * run.world_size * run.devices_per_rank))


def _lost(attempts: Sequence[Attempt]) -> int:
    """Steps that were taken again."""
    known = [attempt for attempt in attempts if attempt.from_step is not None]
    return sum(max(0, (before.reached or 0) - (after.from_step or 0)) for before, after in pairwise(known))


def _bubble(run: Run) -> float | None:
    """Huang et al., 2019, arXiv:1811.06965; with v stages a rank it is v times shorter (arXiv:2104.04473)."""
    return run.options.pipeline.bubble(run.mesh.stages, run.options.microbatches) if run.mesh.pipelined else None


def _step_statistics(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and 95th percentile step time and the throughput; null without steps."""
    if not steps:
        return {"step_seconds_median": None, "step_seconds_p95": None, "samples_per_second": None}
    seconds = sorted(record["seconds"] for record in steps)
    return {
        "step_seconds_median": statistics.median(seconds),
        "step_seconds_p95": seconds[round(0.95 * (len(seconds) - 1))],
        "samples_per_second": sum(record["samples"] for record in steps) / sum(seconds),
    }


def _provenance() -> dict[str, Any]:
    """Versions of the process that asks."""
    packages = ("torch", "deepspeed", "numpy", "safetensors")
    return {"versions": {"python": platform.python_version()} | {name: version(name) for name in packages}}
