"""Floating-point operations of a step, from shapes alone: what the model needs, without what a strategy repeats."""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from shardlab import models
from shardlab.runtime.tasks import MicroBatch, Task
from shardlab.settings.types import Run

FORMULA = (
    "3 x the matrix products, convolutions and attention of a forward pass over the batch, padding included: for a "
    "decoder 6 N + 12 L d s per token, N its parameters in matrices (PaLM, arXiv:2204.02311, appendix B)"
)


class Flops(NamedTuple):
    """Operations of one step over all ranks."""

    step: int
    """By FORMULA: attention counts every pair of positions."""
    causal: int
    """The same without the pairs that causal attention masks, about half of them."""


class _Attention(TorchFunctionMode):
    """Adds up the operations that causal attention masks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.masked = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and kwargs.get("is_causal"):
            query, key = args[:2]
            positions = query.shape[-2] * (key.shape[-2] - 1) // 2
            self.masked += 4 * query.shape[:-2].numel() * positions * query.shape[-1]
        return func(*args, **kwargs)


def _grouped_product(rows: torch.Size, matrices: torch.Size, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Of rows (rows, inputs) in groups, each times its matrix of (groups, inputs, outputs); PyTorch counts none."""
    return 2 * rows.numel() * matrices[-1]


@torch.no_grad()
def count_flops(run: Run, task: Task, micro: MicroBatch) -> Flops | None:
    """Count a step on this batch; None for a model whose forward pass reads values, which shapes do not have."""
    model = models.build(run.model, run.task, torch.float32).to("meta")
    batch = {name: values.to("meta") for name, values in micro.batch.items()}
    batch = {name: values.float() if values.is_floating_point() else values for name, values in batch.items()}
    attention, grouped = _Attention(), getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    counter = FlopCounterMode(display=False, custom_mapping={grouped: _grouped_product} if grouped else None)
    without_values: Any = nullcontext
    if run.model.folder is not None:
        from shardlab.patches.transformers_values import without_values
    try:
        with without_values(), counter, attention:
            task.outputs(model, batch)
    except (RuntimeError, NotImplementedError):
        return None
    forward = counter.get_total_flops()
    return Flops(3 * forward, 3 * (forward - attention.masked))
