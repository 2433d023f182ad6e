"""Floating-point operations of a step, from shapes alone: what the model needs, without what a strategy repeats;
and the peaks of known devices: dense FLOP/s by arithmetic, from their makers' data sheets.
"""

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


H100 = {"float64": 66.9e12, "float32": 66.9e12, "bf16": 989.4e12, "fp16": 989.4e12}
H100_NVL = {"float64": 60e12, "float32": 60e12, "bf16": 835.5e12, "fp16": 835.5e12}
A100 = {"float64": 19.5e12, "float32": 19.5e12, "bf16": 312e12, "fp16": 312e12}
PEAKS: dict[str, dict[str, float]] = {
    "H100 PCIe": {"float64": 51.2e12, "float32": 51.2e12, "bf16": 756e12, "fp16": 756e12},
    "H100 NVL": H100_NVL,
    "H200 NVL": H100_NVL,
    "H100": H100,
    "H200": H100,
    "GH200": H100,
    "A100": A100,
    "L40S": {"float32": 91.6e12, "bf16": 362e12, "fp16": 362e12},
    "V100": {"float64": 7.8e12, "float32": 15.7e12, "fp16": 125e12},
    "MI300X": {"float64": 163.4e12, "float32": 163.4e12, "bf16": 1307.4e12, "fp16": 1307.4e12},
    # One of the two dies of a module, which is what PyTorch calls a device.
    "MI250X": {"float64": 47.9e12, "float32": 47.9e12, "bf16": 191.5e12, "fp16": 191.5e12},
}
"""Part of a device's name, longer ones first: its peaks in the data sheet, without sparsity.

float64, and AMD's float32, with the matrix units, which the libraries use by themselves; NVIDIA's float32 without: TF32
is off.
"""


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


def peak(device: str, arithmetic: str) -> float | None:
    """Return the peak FLOP/s of the named device in a precision; None if unknown."""
    return next((peaks.get(arithmetic) for name, peaks in PEAKS.items() if name in device), None)
