"""Reports of the stages (train.json, test.json, ...), one definition each."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from shardlab.errors import UserError, remedy
from shardlab.files import read_json, sha256, write_json
from shardlab.schema import Strict, check
from shardlab.settings.run_identity import Identity, digest
from shardlab.settings.types import WARMUP_STEPS

FIRST_STEPS = 4
"""Number of steps whose losses are compared: few enough that rounding has not grown."""
LATER = f"excluding the first {WARMUP_STEPS} steps"


class Report(Strict):
    """A file of results. Its seal shows whether it was edited."""

    seal: str = Field("", description="SHA-256 of the other keys, to detect edited or damaged files.")

    def write(self, path: Path) -> None:
        values = self.model_dump(mode="json", exclude={"seal"})
        write_json(path, values | {"seal": digest(values)})

    @classmethod
    def read(cls, path: Path, remedy: str) -> Self:
        """Read the report in a file.

        Raises:
            UserError: it is missing, damaged, of another version, or was edited; the message ends with ``remedy``.
        """
        values = read_json(path, "report", remedy)
        try:
            report = check(cls, values, str(path))
        except UserError as error:
            problem = str(error).partition("; ")[0]  # what else the file could have helps nobody: a program writes it
            raise UserError(f"{problem}: it is damaged or of another version of this project; {remedy}.") from None
        # Of what the file has: a key that came later has its default.
        if report.seal != digest({key: value for key, value in values.items() if key != "seal"}):
            raise UserError(f"{path} was edited or damaged (its seal does not match); {remedy}.")
        return report


class Traffic(Strict):
    """Traffic of one collective along one mesh axis."""

    axis: str = Field(description="Mesh axis; world: all ranks.")
    collective: str = Field(description="Collective.")
    bytes: float = Field(description="Bytes sent per rank and step (mean over the ranks).")


Kind = Literal["weights", "master_weights", "gradients", "optimizer", "activations", "gathered", "other"]
Kinds = dict[Kind, int]


class TensorBytes(Strict):
    """Bytes of a rank's tensors in one step, by kind: exact, and what a GPU's allocator would have to hold."""

    peak: int = Field(description="Peak of the sum of all kinds.")
    at_peak: Kinds = Field(description="Composition of the peak.")
    largest: Kinds = Field(
        description="Maximum of each kind, at different times. master_weights: the optimizer's separate copy of the "
        "weights, in float32, if there is one; gathered: whole weights or activations whose parts came from other "
        "ranks; other: including gradients of activations."
    )


class Attempt(Strict, frozen=False):
    """One start of a run's training."""

    number: int = Field(description="Counted from 1, also over changes of settings.")
    numbers: str = Field("", description="SHA-256 of the settings and sources that determine its numbers.")
    call: str | None = Field(description="Call of Snakemake that it belongs to.")
    began: str = Field(description="Start time, in UTC.")
    ended: str | None = Field(None, description="End time; null while it runs, and for the one that wrote the report.")
    host: str = Field(description="Host of `shardlab launch`.")
    slurm_job_id: str | None = Field(description="Slurm job; null without Slurm.")
    from_step: int | None = Field(None, description="Its first step; null if it reached none.")
    first_step_at: str | None = Field(None, description="When it was ready for that, in UTC; null if it reached none.")
    reached: int | None = Field(None, description="Steps completed at its end.")
    saved: int | None = Field(None, description="Step of the newest checkpoint at its end; null without one.")
    why: str = Field("", description="Reason of its end.")

    @property
    def failed(self) -> bool:
        """Return whether it ended with an error, not by a request or a kill."""
        return not self.why.startswith(("finished", "stopped", "lost"))

    @property
    def progress(self) -> bool:
        """Return whether it wrote a checkpoint."""
        return self.saved is not None and self.from_step is not None and self.saved > self.from_step


class FirstStep(Strict):
    """One of the first steps, before rounding can grow; null values were not finite."""

    loss: float | None = Field(description="Loss per target of the global batch.")
    grad_norm: float | None = Field(description="Global L2 norm of the gradient, before clipping.")


class TrainReport(Report):
    """Results of a training: train.json. Values that were not measured are null."""

    schema_version: Literal[2] = Field(2, description="Version of this format.")
    identity: Identity = Field(description="Run that this belongs to.")
    settings: dict[str, Any] = Field(description="run.json of the training.")
    initial_weights: str = Field(description="SHA-256 of the weights that it started from.")
    weights: str = Field(description="SHA-256 of model.safetensors.")
    ema_weights: str | None = Field(None, description="SHA-256 of ema.safetensors; null without recipe.ema_decay.")
    strategy: str = Field(description="Strategy.")
    workload: str = Field(description="Workload.")
    mesh: dict[str, int] = Field(description="Mesh axis: degree; empty for one rank.")
    world_size: int = Field(description="Number of ranks.")
    nodes: int = Field(description="Number of nodes.")
    hosts: list[str] = Field(description="Host name of each rank.")
    cpus: list[str] | None = Field(None, description="CPU cores that each rank may run on, as in 0-3,8.")
    devices: list[str] = Field(description="Models of the ranks' devices.")
    parameters: int = Field(description="Number of trainable values in the whole model.")
    expert_parameters: int = Field(0, description="Those of them that ep can split.")
    split_share: float | None = Field(
        None,
        description="Part of the layers' values that tensor parallelism splits by the plan of a transformers model; "
        "null under other strategies.",
    )
    steps: int = Field(description="Optimizer steps.")
    samples: int = Field(description="Training samples read, over all steps.")
    targets: int = Field(description="Training targets, over all steps.")
    samples_per_rank: list[int] | None = Field(
        description="Samples that each rank put through its model since this attempt started; 0 for pipeline stages "
        "without the output; null for a script."
    )
    targets_per_rank: list[int] | None = Field(description="Targets of these samples.")
    train_loss: float = Field(description="Loss of the last step's batch.")
    first_steps: list[FirstStep] = Field(description=f"The first {FIRST_STEPS} steps.")
    learned_nothing: str | None = Field(
        None, description="Reason why the run cannot have learned anything; null if it may have."
    )
    validation_loss: float = Field(description="Loss on the validation split after the last epoch.")
    wall_seconds: float = Field(
        description="Training loop with validation, without start-up and saving; of earlier attempts their steps. Of a "
        "script: its last attempt from start to end."
    )
    step_seconds_median: float | None = Field(description=f"Median step, {LATER}.")
    step_seconds_p95: float | None = Field(description=f"95th percentile step, {LATER}.")
    step_seconds_quartiles: tuple[float, float] | None = Field(None, description=f"First and third quartile, {LATER}.")
    samples_per_second: float | None = Field(description=f"Samples over the steps' time, {LATER}.")
    idle: list[float] | None = Field(
        None,
        description=f"Part of the forward and backward passes, {LATER}, in which a rank (pp) or "
        "a device (mp) waited for others; null if the strategy does not measure it.",
    )
    flops_per_step: int | None = Field(
        description="Floating-point operations of a step over all ranks, by flops_formula; null for a model that "
        "cannot be run over shapes alone, and for a script."
    )
    flops_formula: str | None = Field(description="Formula by which operations were counted; null for a script.")
    device_peak_flops: float | None = Field(
        description="Peak of a device in the run's arithmetic, from its data sheet (FLOP/s); null if unknown."
    )
    mfu: float | None = Field(
        None,
        description="Model FLOPs utilization: flops_per_step, over the median step and the peak of all devices; null "
        "if the peak is unknown.",
    )
    recomputed: str | None = Field(None, description="Recomputation: the recipe's, or what auto resolved to.")
    attention: str | None = Field(
        None,
        description="Attention kernel: flash, efficient, cudnn, overrideable, or math (no fused kernel); null for a "
        "model without attention, or if no step was measured.",
    )
    tensor_bytes: list[TensorBytes] | None = Field(
        description="Tensor bytes of each rank in a step, on its fullest device; null, like the next ones, for a "
        "run that resumed at its last step, and, like bytes_per_step and traffic, for a script."
    )
    peak_memory_bytes: list[int] | None = Field(description="Peak memory of each rank.")
    peak_memory_kind: Literal["process RSS", "CUDA allocated"] = Field(description="Kind of the measurement.")
    bytes_per_step: float | None = Field(description="Bytes sent per rank and step (mean over the ranks).")
    traffic: list[Traffic] | None = Field(description="bytes_per_step by mesh axis and collective.")
    checkpoints: int | None = Field(description="Checkpoints written, including best.safetensors; null for a script.")
    attempts: list[Attempt] = Field(default=[], description="All attempts at the run, this one last.")
    lost_steps: int = Field(0, description="Steps repeated because an attempt ended after its last checkpoint.")
    skipped_steps: int = Field(0, description="Steps that the loss scaler of fp16 skipped: an infinite gradient.")
    image_digest: str | None = Field(None, description="SHA-256 of the container image; null without one.")
    image_labels: dict[str, str] = Field(
        default={}, description="The image's labels: versions, git commit, hash of the lock file."
    )
    slurm_job_id: str | None = Field(None, description="Slurm job; null without Slurm.")
    git_commit: str | None = Field(None, description="Commit of the working tree, with -dirty if changed.")
    versions: dict[str, str] = Field(description="Versions of the software used.")

    def held(self, kind: Kind | None = None) -> int | None:
        """Return the maximum bytes per rank of a kind, or the peak of all kinds; None if that was not measured."""
        if self.tensor_bytes is None:
            return None
        return max(rank.largest[kind] if kind else rank.peak for rank in self.tensor_bytes)


class Evaluated(Strict):
    """Evaluation of weights over the whole test split, each sample exactly once."""

    workload: str = Field(description="Workload.")
    loss: float = Field(description="Mean loss per target over the test split.")
    evaluation: Literal["whole", "sharded"] = Field(description="whole: on one device; sharded: under the strategy.")
    metric_name: str = Field(description="Name of the metric.")
    metric_value: float | None = Field(
        description="Its value; null if sharded evaluation does not compute it, or if it is not finite."
    )
    samples: int = Field(description="Number of test samples.")
    targets: int = Field(description="Number of test targets.")
    expert_choices: str | None = Field(
        None,
        description="Experts that the first test tokens choose in each layer (see records/expert_choices.py); null "
        "without experts, or after a sharded evaluation.",
    )


class TestReport(Evaluated, Report):
    """Evaluation of the consolidated weights: test.json."""

    __test__ = False  # not a test class for pytest

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    identity: Identity = Field(description="Run that this belongs to.")
    weights: str = Field(description="SHA-256 of the weights that were evaluated.")
    untrained_loss: float | None = Field(description="Loss of the initial weights; null after a sharded evaluation.")
    ema_loss: float | None = Field(
        None, description="Loss of the averaged weights, ema.safetensors; null without recipe.ema_decay."
    )
    ema_metric_value: float | None = Field(None, description="Their metric.")


class InitialReport(Report):
    """The initial weights that all runs of a workload start from: init/WORKLOAD.json."""

    schema_version: Literal[2] = Field(2, description="Version of this format.")
    identity: Identity = Field(description="Workload and data that this belongs to.")
    weights: str = Field(description="SHA-256 of the weights.")
    parameters: int = Field(description="Number of trainable values.")
    loss: float | None = Field(
        description="Mean loss per target over the test split; null if runs are evaluated sharded, as one device "
        "may not hold the model."
    )
    properties: dict[str, list[str]] = Field(
        {}, description="What the model contains under any strategy (settings/model_rules.py), with names."
    )


class WeightsReport(Report):
    """Final weights of a run compared with those of its workload's ``single``: weights.json."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    weights: str = Field(description="SHA-256 of the run's model.safetensors.")
    single_weights: str = Field(description="SHA-256 of that of `single`.")
    initial_weights: str = Field(description="SHA-256 of the initial weights.")
    differences: dict[str, float] = Field(
        description="Parameter or buffer: norm of its difference from that of `single`, relative to the norm of the "
        "latter; the norm itself if that is 0."
    )
    exact: list[str] = Field(
        description="Those that have to be equal: integers and bools, and what the training of `single` leaves as it "
        "was (frozen, unused)."
    )
    changed: int = Field(
        0,
        description="In low precision: number of values that the training changed, without those that began at 0 and "
        "those of a type that is not wider than recipe.precision.",
    )
    rounded: int = Field(0, description="Those of them that the type of recipe.precision represents exactly.")
    rounded_in_single: int = Field(0, description="Those that it represents in the weights of `single`.")


def initial_digest(weights: Path) -> str:
    """Return the SHA-256 of initial weights, after comparing it with the report next to them, if there is one.

    Raises:
        UserError: they differ.
    """
    digest, report = sha256(weights), initial_report(weights)
    if report and report.weights != digest:
        where, again = weights.with_suffix(".json"), remedy("recreate both", weights, "-f")
        raise UserError(f"{weights} is damaged: its SHA-256 is not the one in {where}; {again}.")
    return digest


def initial_report(weights: Path) -> InitialReport | None:
    """Return the report next to initial weights, if there is one.

    Raises:
        UserError: see ``Report.read``.
    """
    path = weights.with_suffix(".json")
    return InitialReport.read(path, remedy("recreate both", weights, "-f")) if path.exists() else None


class Twin(Strict):
    """Another training of ``single``, and how far it is from the first one."""

    validation_loss: float = Field(description="Loss on the validation split after the last epoch.")
    test_loss: float = Field(description="Mean loss per target over the test split.")
    ema_loss: float | None = Field(None, description="See test.json.")
    expert_choices: str | None = Field(None, description="See test.json.")
    first_steps: list[FirstStep] = Field(default=[], description="See train.json.")
    weights: dict[str, float] = Field(description="Differences from the final weights of `single`, as in weights.json.")


class NoiseFloorReport(Report):
    """Rounding noise of a workload's training: noise_floor/WORKLOAD.json."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    identity: Identity = Field(description="Run of `single` that they are twins of.")
    initial_weights: str = Field(description="SHA-256 of the weights before the perturbation.")
    workload: str = Field(description="Workload.")
    single_weights: str = Field(description="SHA-256 of the final weights that the twins' are compared with.")
    scale: float = Field(description="Relative size of the perturbation: each weight times 1 + scale N(0, 1).")
    twins: list[Twin] = Field(description="One per draw: trained from the perturbed weights.")
    full_precision: Twin | None = Field(
        None,
        description="Trained from the unperturbed weights with recipe.precision full: what low precision changes in "
        "the loss and in each weight; null if `single` is in full precision itself.",
    )
