"""Families of strategies, so that charts need a few colors instead of one per strategy."""

from dataclasses import dataclass

from shardlab.records.reports import TrainReport
from shardlab.settings.mesh import split_by
from shardlab.settings.types import Run


@dataclass(frozen=True)
class Mark:
    """How a family is drawn, on a light and on a dark background."""

    color: str
    shape: str
    """As Vega names it, or as a path."""


ONE_DEVICE, DATA_PARALLEL, SHARDED, ZERO = "one device", "data parallel", "sharded data parallel", "ZeRO (DeepSpeed)"
PIPELINE, TENSOR, CONTEXT = "pipeline / model", "tensor parallel", "context parallel"
EXPERT = "expert parallel"
HALF_DISK = "M-.5,-1A1,1,0,0,1,-.5,1Z"
STAR = "M0.00,-1.25L0.32,-0.44L1.19,-0.39L0.52,0.17L0.73,1.01L0.00,0.55L-0.73,1.01L-0.52,0.17L-1.19,-0.39L-0.32,-0.44Z"
"""Paths of shapes that Vega does not name, in a square from about -1 to 1."""
COMBINED, OTHER = "combined", "other"
FAMILIES = {
    ONE_DEVICE: Mark("#8b949e", "cross"),
    DATA_PARALLEL: Mark("#3f8ae0", "circle"),
    SHARDED: Mark("#e0802c", "square"),
    ZERO: Mark("#d9514e", "diamond"),
    PIPELINE: Mark("#3ba272", "triangle-right"),
    TENSOR: Mark("#9a6fdd", "triangle-up"),
    CONTEXT: Mark("#2aa5b8", HALF_DISK),
    EXPERT: Mark("#5a3cff", STAR),
    COMBINED: Mark("#d65fa6", "triangle-down"),
    OTHER: Mark("#9c7a4a", "triangle-left"),
}
"""Family: how it is drawn, in the order of legends."""
OF_SPLITS = {
    frozenset({"samples"}): DATA_PARALLEL,
    frozenset({"samples", "states"}): SHARDED,
    frozenset({"layers"}): PIPELINE,
    frozenset({"tensors"}): TENSOR,
    frozenset({"sequence", "states"}): CONTEXT,
    frozenset({"samples", "states", "experts"}): EXPERT,
}
"""Splits by the axes of a strategy: its family."""
OF_SINGLE_PROCESS = {"dp": DATA_PARALLEL, "mp": PIPELINE}


def family(train: TrainReport) -> str:
    """The family of a run's strategy, from its engine and the axes of its mesh, whatever the strategy is called."""
    run = Run.model_validate(train.settings)
    if run.engine == "deepspeed":
        return ZERO
    if run.options.single_process:
        return OF_SINGLE_PROCESS[run.options.single_process]
    axes = run.mesh.root
    if not axes:
        return ONE_DEVICE
    return OF_SPLITS.get(frozenset(split_by(axes)), COMBINED if len(axes) > 1 else OTHER)
