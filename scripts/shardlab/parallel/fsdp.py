"""Fully sharded data parallel (Zhao et al., 2023, arXiv:2304.11277; ``fully_shard``), HSDP on a 2-D mesh."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

from shardlab.models.contents import shared_outside
from shardlab.models.weights import is_packed
from shardlab.runtime.distributed import local, text_of_mesh
from shardlab.settings.types import StrategyOptions

log = logging.getLogger(__name__)


def apply(
    model: nn.Module,
    blocks: list[nn.Module],
    mesh: DeviceMesh,
    options: StrategyOptions,
    dtype: torch.dtype,
    *,
    low: torch.dtype | None,
    pipelined: bool,
    experts: tuple[list[nn.Module], DeviceMesh] | None = None,
) -> None:
    """Shard in place: each block separately, then the remaining parameters together.

    ``blocks`` are the workload's; with ``wrap_parameters`` they are instead the submodules with at least that many
    parameters. ``mesh`` is (dp_shard) or (dp_replicate, dp_shard), ``dtype`` that of the weights,
    and ``low`` that of the layers' arithmetic, if it is a lower precision. ``experts`` are submodules to shard over
    another mesh of the same kind.
    """
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if options.cpu_offload else OffloadPolicy()
    inside = outside = MixedPrecisionPolicy()
    if low:
        # Reduce gradients in the weights' own dtype: the part of low precision that costs accuracy most.
        inside = MixedPrecisionPolicy(low, reduce_dtype=dtype)
        outside = MixedPrecisionPolicy(low, reduce_dtype=dtype, output_dtype=dtype)
    reshard = options.reshard_after_forward
    if reshard is None and pipelined:
        reshard = False  # else each micro-batch would gather the weights again
    # FSDP cannot send parameters without values; each rank keeps them as they are.
    empty = {parameter for parameter in model.parameters() if not parameter.numel()}

    def shard(module: nn.Module, mesh: DeviceMesh, precision: MixedPrecisionPolicy) -> None:
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=reshard,
            shard_placement_fn=partial(_placement, ranks=mesh.size(mesh.ndim - 1)),
            mp_policy=precision,
            offload_policy=offload,
            ignored_params=empty,
        )

    if experts is not None:
        for module in experts[0]:
            shard(module, experts[1], replace(inside, cast_forward_inputs=False))  # the weights of their sum stay exact
        log.info("Applied FSDP to %d modules of experts, mesh %s", len(experts[0]), text_of_mesh(experts[1]))
    # A unit has all modules of its parameters: a tied one belongs to the model's.
    tied = shared_outside(model, blocks)
    if tied and options.wrap_parameters is None:
        log.info("Left %d blocks with tied parameters to the root", len(tied))
    blocks = [block for block in blocks if block not in tied]
    if options.wrap_parameters is not None:
        blocks = [block for block in _large(model, options.wrap_parameters) if not isinstance(block, FSDPModule)]
    apart = of_another_type(model, dtype)
    # What is inside another block is a unit of its own: it comes first.
    blocks = [block for block in reversed([*model.modules()]) if block in {*blocks} - {*apart}]
    for module in apart:
        shard(module, mesh, MixedPrecisionPolicy())
    for module in blocks:
        shard(module, mesh, inside)
    shard(model, mesh, outside)
    log.info(
        "Applied %s to %d blocks and the root, mesh %s%s%s",
        "HSDP" if mesh.ndim > 1 else "FSDP",
        len(blocks),
        text_of_mesh(mesh),
        f", computing in {str(low).removeprefix('torch.')}" if low else "",
        ", states in CPU memory" if options.cpu_offload else "",
    )


def of_another_type(model: nn.Module, dtype: torch.dtype) -> list[nn.Module]:
    """Return the modules whose own trained parameters are not of the training's type, which FSDP reduces one by one.

    Inner modules come first.
    """

    def types(module: nn.Module) -> set[torch.dtype]:
        return {value.dtype for value in module.parameters(recurse=False) if value.requires_grad and value.numel()}

    return [module for module in reversed([*model.modules()]) if types(module) - {dtype}]


def _placement(parameter: nn.Parameter, ranks: int) -> Shard:
    placements: tuple[Any, ...] = getattr(parameter, "placements", ())
    packed = placements[-1].dim if is_packed(placements) else None
    return Shard(shard_dimension(local(parameter).shape, ranks, packed))


def shard_dimension(shape: Sequence[int], ranks: int, packed: int | None = None) -> int:
    """Return the dimension of a parameter to shard: the first one, whose rows are filled up to a multiple of the ranks.

    Stacked matrices, such as those of experts, and what has fewer rows than ranks would fill up much: of these it is
    the first dimension that the ranks divide, if there is one. It is never the ``packed`` one, of which tensor
    parallelism gives each rank several pieces.
    """
    if len(shape) != 3 and packed != 0 and (not shape or shape[0] >= ranks):
        return 0
    possible = (dimension for dimension, size in enumerate(shape) if size % ranks == 0 and dimension != packed)
    return next(possible, 1 if packed == 0 else 0)


def _large(model: nn.Module, parameters: int) -> list[nn.Module]:
    """Return submodules with at least this many parameters that no deeper module has wrapped: deepest first."""
    found: list[nn.Module] = []
    taken: set[nn.Parameter] = set()
    inside = [module for module in model.modules() if module is not model]
    tied = shared_outside(model, inside)
    for module in reversed([module for module in inside if module not in tied]):
        own = [parameter for parameter in module.parameters() if parameter not in taken]
        if isinstance(module, nn.ModuleList | nn.ModuleDict) or sum(p.numel() for p in own) < parameters:
            continue
        found.append(module)
        taken.update(own)
    return found
