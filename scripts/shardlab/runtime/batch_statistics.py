"""Batch norm's statistics: all that a forward pass may change in a model (runtime/trial.py finds other changes).

One rule for every strategy: after each step, all ranks with the same modules have the first one's persistent buffers,
as under DDP. So evaluation, checkpoints and model.safetensors see the same values.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.runtime.distributed import NOT_TRAFFIC


def tracked(root: nn.Module) -> list[nn.Module]:
    """Return the batch norms of a module that keep statistics."""
    kinds = nn.modules.batchnorm._BatchNorm
    return [each for each in root.modules() if isinstance(each, kinds) and each.track_running_stats]


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


class SharedBuffers:
    """Persistent buffers of the model's parts on this rank, which its forward passes may change."""

    def __init__(self, parts: Iterable[nn.Module], group: dist.ProcessGroup | None) -> None:
        """``group``: the ranks with the same modules; None for this rank alone."""
        self._group = group
        self._places: dict[int, tuple[nn.Module, str]] = {}
        for module in (module for part in parts for module in part.modules()) if group else ():
            for name, buffer in module._buffers.items():
                # A DTensor is the same on all ranks by itself.
                is_plain = buffer is not None and not hasattr(buffer, "placements")
                if is_plain and name not in module._non_persistent_buffers_set:
                    self._places.setdefault(id(buffer), (module, name))

    def share(self) -> None:
        """Copy the values of the group's first rank to its other ranks; a collective."""
        buffers = [module._buffers[name] for module, name in self._places.values()]
        if self._group is not None and self._group.size() > 1:
            _share([buffer for buffer in buffers if buffer is not None and buffer.numel()], self._group)


def _share(buffers: list[Tensor], group: dist.ProcessGroup) -> None:
    """Copy the values of a group's first rank to its other ranks, in one broadcast."""
    if not buffers:
        return
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
