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
    """As Vega names it."""
    glyph: str
    """The same shape as a character, for the legend of the page."""


ONE_DEVICE, DATA_PARALLEL, SHARDED, ZERO = "one device", "data parallel", "sharded data parallel", "ZeRO (DeepSpeed)"
PIPELINE, TENSOR, CONTEXT = "pipeline / model", "tensor parallel", "context parallel"
COMBINED, OTHER = "combined", "other"
FAMILIES = {
    ONE_DEVICE: Mark("#8b949e", "cross", "\u271a"),
    DATA_PARALLEL: Mark("#3f8ae0", "circle", "\u25cf"),
    SHARDED: Mark("#e0802c", "square", "\u25a0"),
    ZERO: Mark("#d9514e", "diamond", "\u25c6"),
    PIPELINE: Mark("#3ba272", "triangle-right", "\u25b6"),
    TENSOR: Mark("#9a6fdd", "triangle-up", "\u25b2"),
    CONTEXT: Mark("#2aa5b8", "wedge", "\u25ed"),
    COMBINED: Mark("#d65fa6", "triangle-down", "\u25bc"),
    OTHER: Mark("#9c7a4a", "triangle-left", "\u25c0"),
}
"""Family: how it is drawn, in the order of legends."""
OF_SPLITS = {
    frozenset({"samples"}): DATA_PARALLEL,
    frozenset({"samples", "states"}): SHARDED,
    frozenset({"layers"}): PIPELINE,
    frozenset({"tensors"}): TENSOR,
    frozenset({"sequence", "states"}): CONTEXT,
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
