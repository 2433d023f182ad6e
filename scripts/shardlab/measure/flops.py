"""Floating-point operations of a step, from shapes alone: what the model needs, without what a strategy repeats."""

from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from shardlab import models
from shardlab.runtime.tasks import MicroBatch, Task
from shardlab.settings.types import Run

FORMULA = (
    "3 x the matrix products, convolutions and attention of a forward pass over the batch, padding included: for a "
    "decoder 6 N + 12 L d s per token, N its parameters in matrices (PaLM, arXiv:2204.02311, appendix B)"
)


def _grouped_product(rows: torch.Size, matrices: torch.Size, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Of rows (rows, inputs) in groups, each times its matrix of (groups, inputs, outputs); PyTorch counts none."""
    return 2 * rows.numel() * matrices[-1]


@torch.no_grad()
def count_flops(run: Run, task: Task, micro: MicroBatch) -> int | None:
    """Count a step on this batch, over all ranks, by FORMULA; attention counts every pair of positions. None for a
    model whose forward pass reads values, which shapes do not have.
    """
    model = models.build(run.model, run.task, torch.float32).to("meta")
    batch = {name: values.to("meta") for name, values in micro.batch.items()}
    batch = {name: values.float() if values.is_floating_point() else values for name, values in batch.items()}
    grouped = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    counter = FlopCounterMode(display=False, custom_mapping={grouped: _grouped_product} if grouped else None)
    without_values: Any = nullcontext
    if run.model.folder is not None:
        from shardlab.patches.transformers_values import without_values
    try:
        with without_values(), counter:
            task.outputs(model, batch)
    except (RuntimeError, NotImplementedError):
        return None
    return int(3 * counter.get_total_flops())
