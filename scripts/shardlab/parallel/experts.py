"""Expert parallelism: each rank has some of the experts, and tokens travel to the ranks of their experts and back.

Lepikhin et al., 2020 (GShard, arXiv:2006.16668, section 3.2), here without dropped tokens: the numbers of rows are
exchanged first, then the rows themselves, in parts of different sizes.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from shardlab.models._experts import Compute, Experts, inverse, sizes, tokens_per_expert
from shardlab.runtime.distributed import text_of_mesh

log = logging.getLogger(__name__)


def split(modules: list[nn.Module], mesh: DeviceMesh) -> None:
    """Split Experts on the meta device in place over the 1-D ``mesh``, also those that tensor parallelism has split."""
    ranks = mesh.size()
    for module in modules:
        split_parameters(module, mesh)
        experts: Any = module
        experts.matrices = partial(_matrices, experts, ranks)
        experts.compute = partial(exchanged, compute=experts.compute, group=mesh.get_group())
    log.info("Applied expert parallelism to %d modules, mesh %s", len(modules), text_of_mesh(mesh))


def _matrices(experts: Experts, ranks: int) -> tuple[Tensor, ...]:
    return tuple(
        _Mean.apply(cast(DTensor, matrix).to_local(), ranks)  # type: ignore[no-untyped-call]
        for matrix in (experts.gate, experts.up, experts.down)
    )


def split_parameters(experts: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of ``mesh`` its part of a module's stacked parameters on the meta device, in place."""
    for name, parameter in [*experts.named_parameters(recurse=False)]:
        whole, grid, placements = parameter.data, mesh, [Shard(0)]
        if isinstance(whole, DTensor):
            grid = DeviceMesh._concatenate([mesh, whole.device_mesh])
            placements += cast(Any, whole.placements)
            whole = torch.empty(whole.shape, dtype=whole.dtype, device="meta")
        split = distribute_tensor(whole, grid, placements, src_data_rank=None)
        experts.register_parameter(name, nn.Parameter(split, requires_grad=parameter.requires_grad))


class _Mean(torch.autograd.Function):
    """The identity; the gradient, a sum over the ranks that sent rows, is divided by their number.

    Engines average gradients over the ranks with other samples. Those with other experts are among these, but
    ``fully_shard`` averages the experts' gradients only over the ranks with the same ones. (In float64, a factor given
    to it would count twice where it has one rank.)
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, ranks: int) -> Tensor:
        """See torch.autograd.Function."""
        ctx.ranks = ranks
        return matrix.view_as(matrix)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """See torch.autograd.Function."""
        return gradient / ctx.ranks, None


def exchanged(rows: Tensor, counts: Tensor, compute: Compute, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Send rows to the ranks of their experts, apply ``compute`` there, and return its results in the rows' order, and
    the number of rows that came and were computed here.

    ``rows`` and ``counts`` are those of all experts (see Compute). A rank without rows takes part as well.
    """
    ranks = group.size()
    sent = counts.view(ranks, -1)
    received = all_to_all_single(sent.contiguous(), None, None, group).view_as(sent)
    ours, others = sizes(sent.sum(1), len(rows)), sizes(received.sum(1), len(rows))
    own = all_to_all_single_autograd(rows, others, ours, group)
    # By rank, and of each rank by expert; they have to be by expert.
    number = torch.arange(received.shape[1], device=rows.device).repeat(ranks)
    order = number.repeat_interleave(received.flatten(), output_size=len(own)).sort(stable=True).indices
    results, computed = compute(own[order], received.sum(0, dtype=counts.dtype))
    return all_to_all_single_autograd(results[inverse(order)], ours, others, group), computed


def split_library(modules: list[nn.Module], mesh: DeviceMesh) -> None:
    """The same of a transformers model's modules of experts, whose tokens travel as those of our models do.

    Of the library's plan only the names of these modules are used: gemma4's also splits dense layers, which is right
    where the ranks of a group have the same samples, and they have different ones here.
    """
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
    ``_Mean``).
    """
    own = dict(module._parameters)
    for name, value in own.items():
        if isinstance(value, DTensor):
            module._parameters[name] = _Mean.apply(value.to_local(), mesh.size())  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        module._parameters.update(own)
