"""What is done to a model, or a part of one, before it trains: in this order, as the run's settings say."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardlab.errors import UserError
from shardlab.models import matching
from shardlab.settings.types import Run
from shardlab.training.distributed import World


def apply(run: Run, model: nn.Module, world: World) -> None:
    """Change a model without weights (on the meta device) in place: split, recompute, compile, shard."""
    # Which technique is chosen by the axes that the strategy names, not by their degrees:
    # FSDP on one GPU is still FSDP.
    if world.mesh is not None and "tp" in run.mesh:
        from shardlab.strategies import tensor

        options = run.options
        tensor.apply(
            model,
            run.model.tensor,
            run.model.blocks,
            world.mesh["tp"],
            sequence_parallel=options.sequence_parallel,
            loss_parallel=options.loss_parallel,
        )
    blocks = [module for pattern in run.model.blocks for module in matching(model, pattern)]
    _recompute(run.recipe.activation_checkpointing, blocks)
    if run.recipe.precision == "bf16" and "dp_shard" not in run.mesh:
        # Around forward, because a pipeline calls its stages by itself.
        _around(model, torch.autocast(world.device.type, torch.bfloat16))
    for module in {"none": [], "blocks": blocks, "model": [model]}[run.recipe.compile]:
        # The forward method alone: hooks of FSDP and tensor parallelism stay outside of the graph.
        module.forward = torch.compile(module.forward, backend=run.recipe.compile_backend)  # type: ignore[method-assign]
    if world.mesh is not None and "dp_shard" in run.mesh:
        from shardlab.strategies import fsdp

        axes = [axis for axis in ("dp_replicate", "dp_shard") if axis in run.mesh]
        fsdp.apply(run, model, blocks, world.mesh[tuple(axes)] if len(axes) > 1 else world.mesh["dp_shard"])


def wrap(run: Run, model: nn.Module, world: World) -> nn.Module:
    """What to call instead of the model, now with its weights: it averages gradients over replicas."""
    if run.options.one_process == "dp":
        from shardlab.strategies import data_parallel

        return data_parallel.apply(model, world.device, run.devices_per_rank)
    if world.mesh is not None and "dp_replicate" in run.mesh and "dp_shard" not in run.mesh:
        from shardlab.strategies import ddp

        return ddp.apply(model, world.mesh["dp_replicate"])
    return model


def synchronized(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Context of a micro-batch: replicas average their gradients once, after the ``last`` one."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    if set_requires_all_reduce := getattr(model, "set_requires_all_reduce", None):
        set_requires_all_reduce(last)  # HSDP; the shards are summed each time, so that none holds whole gradients
    return nullcontext()


def check_blocks(run: Run, model: nn.Module) -> None:
    """Raise a UserError if a pattern of ``blocks`` matches nothing in the whole model."""
    for pattern in run.model.blocks:
        if not matching(model, pattern):
            raise UserError(f"blocks: no submodule matches {pattern}; name one of the model's, such as layers.*.")


def _recompute(mode: str, blocks: list[nn.Module]) -> None:
    """Activation checkpointing (Chen et al., 2016, arXiv:1604.06174) of each block."""
    if mode == "none":
        return
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": True}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _keep_products())

    def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda block, *args, **keywords: checkpoint(forward, block, *args, **options, **keywords)

    for block in blocks:
        _around(block, recomputed)


def _around(module: nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap a module's forward in a class of its own: on the object, DataParallel's replicas would share it, bound to
    the first device's weights."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": wrap(kind.forward)})


def _keep_products() -> list[Any]:
    """Operators whose outputs selective checkpointing keeps: the costly ones to compute again."""
    aten = torch.ops.aten
    return [
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    ]
