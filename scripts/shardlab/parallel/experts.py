"""Expert parallelism: each rank has some of the experts, and tokens travel to the ranks of their experts and back.

Lepikhin et al., 2020 (GShard, arXiv:2006.16668, section 3.2), here without dropped tokens: the numbers of rows are
exchanged first, then the rows themselves, in parts of different sizes.
"""

import logging
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from shardlab.models._experts import Compute, Experts, inverse, sizes
from shardlab.runtime.distributed import text_of_mesh

log = logging.getLogger(__name__)


def split(modules: list[nn.Module], mesh: DeviceMesh) -> None:
    """Split Experts on the meta device in place over the 1-D ``mesh``, also those that tensor parallelism has split."""
    for module in modules:
        _split(cast(Experts, module), mesh)
    log.info("Applied expert parallelism to %d modules, mesh %s", len(modules), text_of_mesh(mesh))


def _split(experts: Experts, mesh: DeviceMesh) -> None:
    split_parameters(experts, mesh)
    ranks = mesh.size()

    def matrices() -> tuple[Tensor, ...]:
        return tuple(
            _Mean.apply(cast(DTensor, matrix).to_local(), ranks)  # type: ignore[no-untyped-call]
            for matrix in (experts.gate, experts.up, experts.down)
        )

    compute = experts.compute
    experts.matrices = matrices  # type: ignore[method-assign, assignment]
    experts.compute = lambda rows, counts: exchanged(rows, counts, compute, mesh.get_group())  # type: ignore[method-assign]


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
    ours, others = sizes(sent.sum(1), len(rows)), arrivals(received, len(rows))
    own = all_to_all_single_autograd(rows, others, ours, group)
    # By rank, and of each rank by expert; they have to be by expert.
    number = torch.arange(received.shape[1], device=rows.device).repeat(ranks)
    order = number.repeat_interleave(received.flatten(), output_size=len(own)).sort(stable=True).indices
    results, computed = compute(own[order], received.sum(0, dtype=counts.dtype))
    return all_to_all_single_autograd(results[inverse(order)], ours, others, group), computed


def arrivals(received: Tensor, rows: int) -> list[int]:
    """Return how many rows come from each rank: ``received`` (ranks, experts of this rank) on the host; where tensors
    have no content, as many in all as the ``rows`` that this rank sends.
    """
    return sizes(received.sum(1), rows)
