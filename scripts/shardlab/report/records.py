"""What the stages report: train.json and test.json, one definition each (see settings.py for the schemas)."""

import os
import platform
import statistics
from importlib.metadata import version
from typing import Any, Literal

from pydantic import Field

from shardlab.schema import Strict
from shardlab.settings.types import WARMUP_STEPS, Run

LATER = f"the first {WARMUP_STEPS} steps left out"


class Traffic(Strict):
    """What one collective moves along one mesh axis."""

    axis: str = Field(description="Mesh axis; world: all ranks.")
    collective: str = Field(description="Collective.")
    bytes: float = Field(description="Bytes that a rank sends in a step (mean over the ranks).")


class TrainReport(Strict):
    """train.json: how a run went. A figure that was not measured is null."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
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
    train_loss: float = Field(description="Loss of the last step's batch.")
    validation_loss: float = Field(description="Loss on the validation split after the last epoch.")
    wall_seconds: float = Field(description="Training loop with validation, without start-up and saving.")
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
    mfu: float | None = Field(None, description="Model FLOP utilization; null where the peak is not known.")
    mfu_formula: str | None = Field(None, description="How mfu was computed.")
    peak_memory_bytes: list[int] = Field(description="Peak memory of each rank.")
    peak_memory_kind: Literal["process RSS", "CUDA allocated"] = Field(description="What was measured.")
    predicted_memory_bytes: int | None = Field(None, description="Predicted peak of a rank.")
    bytes_per_step: float = Field(description="Bytes that a rank sends in a step (mean over the ranks).")
    bytes_per_step_theory: float | None = Field(
        description="The same from sizes and shapes alone; null where no formula is known."
    )
    traffic: list[Traffic] = Field(description="bytes_per_step by mesh axis and collective.")
    checkpoints: int = Field(description="Checkpoints written, best.safetensors included.")
    restarts: int = Field(description="Times torchrun restarted the ranks.")
    image_digest: str | None = Field(None, description="SHA-256 of the container image; null without one.")
    image_labels: dict[str, str] = Field(
        default={}, description="The image's labels: versions, git commit, hash of the lock file."
    )
    data_fingerprint: str = Field(description="Fingerprint of the prepared data set.")
    slurm_job_id: str | None = Field(None, description="Slurm job; null without Slurm.")
    git_commit: str | None = Field(None, description="Commit of the working tree, with -dirty if changed.")
    versions: dict[str, str] = Field(description="Versions of what took part.")


class TestReport(Strict):
    """test.json: the consolidated weights, each test sample exactly once."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    workload: str = Field(description="Workload.")
    loss: float = Field(description="Mean loss per target over the test split.")
    untrained_loss: float | None = Field(
        description="The same of the initial weights; null after a sharded evaluation."
    )
    evaluation: Literal["whole", "sharded"] = Field(description="On one device, or under the run's own strategy.")
    metric_name: str = Field(description="The metric that a person reads.")
    metric_value: float | None = Field(description="Its value; null where sharded evaluation does not give it.")
    samples: int = Field(description="Test samples.")
    targets: int = Field(description="Test targets.")


def train_report(run: Run, records: list[dict[str, Any]], measured: dict[str, Any]) -> TrainReport:
    """The report of a run from its settings, its metrics records and what was ``measured`` besides."""
    steps = [record for record in records if record["kind"] == "train"]
    return TrainReport.model_validate(
        {
            "strategy": run.strategy,
            "workload": run.workload,
            "mesh": run.mesh.root,
            "world_size": run.world_size,
            "nodes": run.nodes,
            "steps": len(steps),
            "samples": sum(record["samples"] for record in steps),
            "targets": sum(record["targets"] for record in steps),
            "bytes_per_step": sum(entry["bytes"] for entry in measured["traffic"]),
            "train_loss": steps[-1]["loss"],
            "validation_loss": [record["loss"] for record in records if record["kind"] == "validation"][-1],
        }
        | {"idle_theory": _bubble(run)}
        | _step_statistics(steps[WARMUP_STEPS:])
        | _provenance()
        | measured
    )


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
    """Versions, commit and job of the process that asks."""
    packages = ("torch", "deepspeed", "numpy", "safetensors")
    return {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
    }
