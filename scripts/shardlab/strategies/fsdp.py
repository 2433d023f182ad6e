"""Fully sharded data parallel (Zhao et al., 2023, arXiv:2304.11277; ``fully_shard``), HSDP on a 2-D mesh."""

from fnmatch import fnmatchcase

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

from shardlab.errors import UserError


def apply(model: nn.Module, blocks: list[str], mesh: DeviceMesh, *, cpu_offload: bool) -> None:
    """Shard in place: each block by itself, then what is left as one.

    ``blocks`` are patterns of submodule names; ``mesh`` is (dp_shard) or (dp_replicate, dp_shard).
    ``fully_shard`` never broadcasts, so the weights must be the same on every rank.

    Raises:
        UserError: a pattern matches no submodule.
    """
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if cpu_offload else OffloadPolicy()
    for pattern in blocks:
        found = [module for name, module in model.named_modules() if _matches(name, pattern)]
        if not found:
            raise UserError(f"blocks: no submodule matches {pattern}; name one of the model's, such as layers.*.")
        for module in found:
            fully_shard(module, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh, offload_policy=policy)


def _matches(name: str, pattern: str) -> bool:
    # `layers.*` means the children of `layers`, not everything below them.
    return name.count(".") == pattern.count(".") and fnmatchcase(name, pattern)
