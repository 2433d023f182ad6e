"""Tensor parallelism (Shoeybi et al., 2019, arXiv:1909.08053): layers split by column, row or vocabulary."""

from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "column": ColwiseParallel,
    "column_gather": lambda: ColwiseParallel(output_layouts=Replicate()),
    "row": RowwiseParallel,
    "vocab": lambda: RowwiseParallel(input_layouts=Replicate()),
}
"""How a layer can be split. A `column` layer's output stays split for the `row` layer that follows it;
`column_gather` makes it whole again; `vocab` is an Embedding whose rows are split."""


def apply(model: nn.Module, plan: dict[str, str], mesh: DeviceMesh) -> None:
    """Split in place by ``plan`` (submodule pattern: a key of STYLES) over the 1-D ``mesh``.

    Activations between the split layers are whole on every rank.
    """
    parallelize_module(model, mesh, {pattern: STYLES[style]() for pattern, style in plan.items()})
