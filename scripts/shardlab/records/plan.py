"""plan.json: what a run will cost, known before it is paid for.

Bytes and floating-point operations come from plan/simulate.py; whether it fits, from the site's device memory.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shardlab.errors import UserError
from shardlab.records.reports import Report, TensorBytes, Traffic
from shardlab.settings import run_identity
from shardlab.settings.mesh import ParallelDims
from shardlab.settings.sites import Hardware
from shardlab.settings.types import Run

FILE, TOGETHER = "plan.json", "plans"
"""File of a plan, in a folder of its strategy and workload; folder of results/ with such folders."""
MODES = ("none", "selective", "full")
"""Recomputation, least first."""
SAME = ("seed", "sources", "strategy", "workload")
"""Settings of a run that do not affect its cost."""
SAME_RECIPE = ("lr_schedule", "epochs", "max_steps", "keep_best")
SAME_OPTIMIZER = ("learning_rate", "weight_decay", "betas", "eps", "nesterov")


def cost(run: Run) -> str:
    """Return a digest of what determines a run's cost, so that variants in seed or learning rate are planned once."""
    settings = run_identity.of_run(run.model_dump(mode="json", exclude={*SAME}))
    recipe = {key: value for key, value in settings["recipe"].items() if key not in SAME_RECIPE}
    optimizer = {key: value for key, value in recipe["optimizer"].items() if key not in SAME_OPTIMIZER}
    return run_identity.digest(settings | {"recipe": recipe | {"optimizer": optimizer}})


class Plan(Report):
    """Plan of a run: plan.json. Unknown values are null."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    run: str = Field(description="Run that this belongs to: SHA-256 of what trains it again.")
    strategy: str = Field(description="Strategy.")
    workload: str = Field(description="Workload.")
    world_size: int = Field(description="Number of ranks.")
    mesh: dict[str, int] = Field(description="Mesh axis: degree; empty for one rank.")
    method: Literal["simulated", "formula"] = Field(
        description="simulated: the engine's own step on fake tensors; formula: DeepSpeed's states by formula, the "
        "rest simulated."
    )
    data: Literal["prepared", "blank"] = Field(
        description="prepared: the shapes of a real batch; blank: samples of the largest possible size."
    )
    parameters: int = Field(description="Number of trainable values in the whole model.")
    ranks: list[int] = Field(
        description="Simulated ranks: the first one of each pipeline stage; under tensor parallelism the first one for "
        "each shape of a part of the batch."
    )
    tensor_bytes: list[TensorBytes] = Field(description="Tensor bytes of each simulated rank in a step.")
    predicted_memory_bytes: int = Field(description="Peak tensor bytes of any simulated rank.")
    activation_checkpointing: str | None = Field(
        description="Least recomputation, starting with the recipe's, with which it fits, or full if it never does; "
        "null if the site does not specify device memory."
    )
    fits: bool | None = Field(description="True if it fits with that; null if device memory is unknown.")
    flops_per_step: int | None = Field(description="Operations over all ranks (see flops_formula in train.json).")
    traffic: list[Traffic] = Field(description="Bytes sent per rank and step, by mesh axis and collective.")

    @property
    def predicted_bytes_per_step(self) -> float:
        """Bytes sent per rank and step."""
        return sum(entry.bytes for entry in self.traffic)

    def rank(self, number: int) -> TensorBytes:
        """Return what a rank is planned to hold: as the simulated rank of its pipeline stage."""
        dims = ParallelDims(self.mesh)
        if dims.pipelined:
            return self.tensor_bytes[number // dims.stride(*dims.axes("layers")) % dims.stages]
        return self.tensor_bytes[max(at for at, rank in enumerate(self.ranks) if rank <= number)]


def find(run: Run, results: Path) -> Plan | None:
    """Return the plan of a run in a folder of results; None without one."""
    try:
        plan = Plan.read(results / TOGETHER / run.strategy / run.workload / FILE, "plan again")
    except UserError:
        return None
    return plan if plan.run == run_identity.identity_of(run, "").run else None


def make(run: Run, estimate: dict[str, Any], recomputation: str, *, fits: bool | None, prepared: bool) -> Plan:
    """Build the plan of a run from its simulation with that recomputation."""
    return Plan.model_validate(
        {
            **estimate,
            "run": run_identity.identity_of(run, "").run,
            "strategy": run.strategy,
            "workload": run.workload,
            "world_size": run.world_size,
            "mesh": run.mesh.root,
            "method": "simulated" if run.zero_stage is None else "formula",
            "data": "prepared" if prepared else "blank",
            "predicted_memory_bytes": peak(estimate),
            "activation_checkpointing": recomputation if fits is not None else None,
            "fits": fits,
        }
    )


def peak(estimate: dict[str, Any]) -> int:
    """Return the peak bytes of any simulated rank."""
    return max(int(rank["peak"]) for rank in estimate["tensor_bytes"])


def fits(estimate: dict[str, Any], hardware: Hardware) -> bool | None:
    """Return whether the simulated peak fits into a device with the unplanned memory; None if its memory is unknown."""
    if hardware.device_memory_gib is None:
        return None
    return peak(estimate) <= (hardware.device_memory_gib - hardware.unplanned_gib) * 2**30


def misfit(run: Run, hardware: Hardware, made: Plan | None) -> str | None:
    """Return why a run will not fit into the site's devices, according to its plan, if it has one."""
    if made is None or made.fits is None:
        return None
    if made.fits and run.recipe.activation_checkpointing == made.activation_checkpointing:
        return None
    size = made.predicted_memory_bytes / 2**30
    what = f"{run.strategy} x {run.workload} does not fit into a device's {hardware.device_memory_gib:g} GiB"
    if hardware.unplanned_gib:
        what += f", of which {hardware.unplanned_gib:g} are reserved for unplanned memory (hardware.unplanned_gib),"
    if made.fits:
        return (
            f"{what} as it is; set recipe.activation_checkpointing to {made.activation_checkpointing} ({size:.3g} GiB)."
        )
    return (
        f"{what}: its plan says {size:.3g} GiB per rank at best; use more ranks or another strategy (results/plan.md)."
    )
