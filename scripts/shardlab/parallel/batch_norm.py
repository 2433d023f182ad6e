"""Batch norm with the statistics of all data-parallel ranks' samples (torch.nn.SyncBatchNorm), as one device has."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from shardlab.models.contents import is_batch_norm
from shardlab.patches.torch_internals import around_forward

log = logging.getLogger(__name__)


class Batch:
    """The batch that a rank computes."""

    counts = True
    """False for the sample that a rank without samples computes instead: it is in no statistics."""


def synchronize(model: nn.Module, group: dist.ProcessGroup | None, device: torch.device) -> Batch:
    """Synchronize all batch norms of a model in place over a group (None: all ranks).

    On a GPU they become PyTorch's own class, which has fused kernels and is only for GPUs.
    """
    batch, found = Batch(), 0
    for name, module in [*model.named_modules()]:
        if not is_batch_norm(module):
            continue
        found += 1
        if device.type == "cuda" and name:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, nn.SyncBatchNorm.convert_sync_batchnorm(module, group))
        else:
            around_forward(module, partial(_synchronized, group, batch))
    log.info("Synchronized %d batch norms", found)
    return batch


def _synchronized(group: dist.ProcessGroup | None, batch: Batch, forward: Callable[..., Any]) -> Callable[..., Tensor]:
    # With a gradient that is summed as well: every rank's result depends on every rank's summand.
    summed = partial(all_reduce, group=group or dist.group.WORLD)

    def synchronized(module: Any, x: Tensor) -> Tensor:
        if not module.training:
            return forward(module, x)  # type: ignore[no-any-return]
        module._check_input_dim(x)
        dims = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        weight = float(batch.counts)
        rows = x.new_full((1,), weight * x.numel() / x.shape[1])
        total, count = summed(torch.cat([weight * x.sum(dims), rows])).split([x.shape[1], 1])
        mean = total / count
        centered = x - mean.view(shape)
        variance = summed(weight * centered.square().sum(dims)) / count
        if module.track_running_stats:
            module.num_batches_tracked += 1
            rate = module.momentum if module.momentum is not None else 1 / module.num_batches_tracked
            unbiased = variance.detach() * count / (count - 1)
            module.running_mean.lerp_(mean.detach().to(module.running_mean.dtype), rate)
            module.running_var.lerp_(unbiased.to(module.running_var.dtype), rate)
        out = centered * torch.rsqrt(variance + module.eps).view(shape)
        if module.affine:
            out = out * module.weight.view(shape) + module.bias.view(shape)
        return out

    return synchronized
