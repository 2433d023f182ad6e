"""Expert parallelism of transformers models: whole experts per rank, which tokens reach as those of our models do.

Of the library's plan only the names of the experts' modules are used: gemma4's also splits dense layers, which is right
where the ranks of a group have the same samples, and they have different ones here.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shardlab.models._experts import inverse, tokens_per_expert
from shardlab.parallel.experts import _Mean, exchanged, split_parameters
from shardlab.runtime.distributed import text_of_mesh

log = logging.getLogger(__name__)


def split(modules: list[nn.Module], mesh: DeviceMesh) -> None:
    """Split experts on the meta device in place over the 1-D ``mesh``, also those that tensor parallelism has split."""
    for module in modules:
        experts: Any = module
        split_parameters(experts, mesh)
        experts.num_experts //= mesh.size()
        experts.forward = partial(_dispatched, experts, experts.forward, mesh)
    log.info("Applied expert parallelism to %d modules of the library, mesh %s", len(modules), text_of_mesh(mesh))


def _dispatched(
    experts: Any, forward: Callable[..., Tensor], mesh: DeviceMesh, x: Tensor, ids: Tensor, weights: Tensor
) -> Tensor:
    """Return what the module's ``forward`` returns where it has all experts: the weighted sum of each token's.

    Shapes: x (tokens, dim), ids of all experts and weights (tokens, top_k).
    """
    x, weights = (each.to_local() if isinstance(each, DTensor) else each for each in (x, weights))

    def compute(rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        if not len(rows):  # the backward pass needs these parameters, too
            return forward(rows.sum(0, keepdim=True), ids.new_zeros(1, 1), rows.new_ones(1, 1))[:0], counts.sum()
        own = torch.arange(len(counts), device=rows.device).repeat_interleave(counts, output_size=len(rows))
        return forward(rows, own[:, None], rows.new_ones(len(rows), 1)), counts.sum()

    chosen = ids.flatten()
    order = chosen.sort(stable=True).indices
    with _own_parameters(experts, mesh):
        counts = tokens_per_expert(chosen, experts.num_experts * mesh.size())
        rows, _ = exchanged(x[order // ids.shape[1]], counts, compute, mesh.get_group())
    # Rounded after the sum, as the library does.
    return (rows[inverse(order)].unflatten(0, ids.shape) * weights[..., None]).sum(1).to(x.dtype)


@contextmanager
def _own_parameters(module: nn.Module, mesh: DeviceMesh) -> Iterator[None]:
    """This rank's parameters as plain tensors, with gradients divided by the number of ranks that sent tokens (see
    parallel/experts.py).
    """
    own = dict(module._parameters)
    for name, value in own.items():
        if isinstance(value, DTensor):
            module._parameters[name] = _Mean.apply(value.to_local(), mesh.size())  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        module._parameters.update(own)
