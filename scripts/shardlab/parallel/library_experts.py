"""Expert parallelism of transformers models: whole experts per rank, reached through the library's all-to-all.

Of the library's plan only the styles of experts are used: gemma4's also splits dense layers, which is right where the
ranks of a group have the same samples, and they have different ones here.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers.distributed.expert_parallel import EpDispatchExpertsParallel

from shardlab.parallel.experts import _Mean
from shardlab.runtime.distributed import text_of_mesh

log = logging.getLogger(__name__)


def split(modules: list[nn.Module], mesh: DeviceMesh) -> None:
    """Split experts on the meta device in place over the 1-D ``mesh``, also those that tensor parallelism has split."""
    # The ranks with the same samples, of which the library would give each a part of the tokens: one.
    alone = SimpleNamespace(size=lambda: 1, get_group=mesh.get_group)
    for module in modules:
        experts: Any = module
        for name, parameter in [*experts.named_parameters(recurse=False)]:
            experts.register_parameter(name, _split(parameter, mesh))
        experts.num_experts //= mesh.size()
        style: Any = _Dispatched()
        style.install_forward(experts, mesh, tp_mesh=alone, ep_implementation="all_to_all")
    log.info("Applied the library's expert parallelism to %d modules, mesh %s", len(modules), text_of_mesh(mesh))


class _Dispatched(EpDispatchExpertsParallel):  # type: ignore[misc]
    """The library's, with gradients divided by the number of ranks that sent tokens (see parallel/experts.py)."""

    @contextmanager
    def context_around_forward(self, module: nn.Module, mesh: DeviceMesh) -> Iterator[None]:
        own = dict(module._parameters)
        for name, value in own.items():
            if isinstance(value, DTensor):
                module._parameters[name] = _Mean.apply(value.to_local(), mesh.size())  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            module._parameters.update(own)


def _split(parameter: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
    whole, grid, placements = parameter.data, mesh, [Shard(0)]
    if isinstance(whole, DTensor):
        grid = DeviceMesh._concatenate([mesh, whole.device_mesh])
        placements += whole.placements  # type: ignore[arg-type]
        whole = torch.empty(whole.shape, dtype=whole.dtype, device="meta")
    split = distribute_tensor(whole, grid, placements, src_data_rank=None)
    return nn.Parameter(split, requires_grad=parameter.requires_grad)
