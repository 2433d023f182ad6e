"""Batch norm: its statistics, which are all that a forward pass may change in a model (runtime/trial.py finds other
changes), and one with the statistics of all data-parallel ranks' samples (torch.nn.SyncBatchNorm), as one device has.

One rule for every strategy: after each step, all ranks with the same modules have the first one's statistics, as under
DDP. So evaluation, checkpoints and model.safetensors see the same values.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.models.contents import is_batch_norm, keeps_statistics
from shardlab.patches.torch_internals import around_forward
from shardlab.runtime.distributed import NOT_TRAFFIC

log = logging.getLogger(__name__)


def tracked(root: nn.Module) -> list[nn.Module]:
    """Return the batch norms of a module that keep statistics."""
    return [each for each in root.modules() if keeps_statistics(each)]


@contextmanager
def statistics_kept(root: nn.Module) -> Iterator[None]:
    """Leave the statistics of a module's batch norms as they are: forward passes change copies. In training no output
    depends on them.
    """
    own = [(each, dict(each._buffers)) for each in tracked(root)]
    for each, buffers in own:
        each._buffers.update({name: buffer.clone() for name, buffer in buffers.items() if buffer is not None})
    try:
        yield
    finally:
        for each, buffers in own:
            each._buffers.update(buffers)


class Statistics:
    """Those of the batch norms in the model's parts on this rank."""

    def __init__(self, parts: Iterable[nn.Module], group: dist.ProcessGroup | None) -> None:
        """``group``: the ranks with the same modules; None for this rank alone."""
        self._group = group
        self._norms = [*dict.fromkeys(each for part in parts for each in tracked(part))]

    def share(self) -> None:
        """Copy the values of the group's first rank to its other ranks, in one broadcast; a collective."""
        group = self._group
        if group is None or group.size() == 1 or not self._norms:
            return
        buffers = [buffer for norm in self._norms for buffer in norm.buffers(recurse=False)]
        # By size, so that each one's bytes start at a multiple of it.
        buffers = sorted(buffers, key=lambda each: -each.element_size())
        joined = torch.cat([buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers])
        setattr(joined, NOT_TRAFFIC, True)
        dist.broadcast(joined, group=group, group_src=0)
        if group.rank() == 0:
            return
        sizes = [buffer.numel() * buffer.element_size() for buffer in buffers]
        with torch.no_grad():
            for buffer, part in zip(buffers, joined.split(sizes), strict=True):
                buffer.copy_(part.view(buffer.dtype).view(buffer.shape))


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
    from torch.distributed.nn.functional import all_reduce

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
