"""Families of strategies, so that charts need a few colors instead of one per strategy."""

from dataclasses import dataclass

from shardlab.records.reports import TrainReport
from shardlab.settings.mesh import split_by
from shardlab.settings.types import Run


@dataclass(frozen=True)
class Family:
    """How a family is drawn, on a light and on a dark background, and what its strategies split."""

    color: str
    shape: str
    """As Vega names it, or as a path."""
    splits: frozenset[str] | None = None
    """Splits by the axes of the mesh; None: known otherwise."""


HALF_DISK = "M-.5,-1A1,1,0,0,1,-.5,1Z"
STAR = "M0.00,-1.25L0.32,-0.44L1.19,-0.39L0.52,0.17L0.73,1.01L0.00,0.55L-0.73,1.01L-0.52,0.17L-1.19,-0.39L-0.32,-0.44Z"
"""Paths of shapes that Vega does not name, in a square from about -1 to 1."""
FAMILIES = {
    "one device": Family("#8b949e", "cross"),
    "data parallel": Family("#3f8ae0", "circle", frozenset({"samples"})),
    "sharded data parallel": Family("#e0802c", "square", frozenset({"samples", "states"})),
    "ZeRO (DeepSpeed)": Family("#d9514e", "diamond"),
    "pipeline / model": Family("#3ba272", "triangle-right", frozenset({"layers"})),
    "tensor parallel": Family("#9a6fdd", "triangle-up", frozenset({"tensors"})),
    "context parallel": Family("#2aa5b8", HALF_DISK, frozenset({"sequence", "states"})),
    "expert parallel": Family("#5a3cff", STAR, frozenset({"samples", "states", "experts"})),
    "combined": Family("#d65fa6", "triangle-down"),
    "other": Family("#9c7a4a", "triangle-left"),
}
"""In the order of legends."""


def family(train: TrainReport) -> str:
    """The family of a run's strategy, from its engine and the axes of its mesh, whatever the strategy is called."""
    run = Run.model_validate(train.settings)
    if run.engine == "deepspeed":
        return "ZeRO (DeepSpeed)"
    if run.options.single_process:
        return {"dp": "data parallel", "mp": "pipeline / model"}[run.options.single_process]
    axes = run.mesh.root
    if not axes:
        return "one device"
    splits, others = frozenset(split_by(axes)), "combined" if len(axes) > 1 else "other"
    return next((name for name, each in FAMILIES.items() if each.splits == splits), others)
