"""Transformations of a model, or a part of one, before training: in this order, as the run's settings say."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shardlab.models import matching
from shardlab.patches.torch_internals import around_forward
from shardlab.runtime import batch_norm
from shardlab.runtime.distributed import World
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.recipe import Recipe
from shardlab.settings.types import Run

log = logging.getLogger(__name__)


def apply(run: Run, model: nn.Module, world: World) -> Any:
    """Transform a model without weights (on the meta device) in place: split, recompute, compile, shard.

    Return its batch_norm.Batch, if the recipe synchronizes batch norm.
    """
    recipe, options, batch = run.recipe, run.options, None
    if (mesh := world.submesh(run.mesh.axes("tensors"))) is not None:
        from shardlab.parallel import tensor

        kinds = {"sequence_parallel": options.sequence_parallel, "loss_parallel": options.loss_parallel}
        if run.model.folder:
            from shardlab.parallel import library_tensor

            library_tensor.apply(model, run.model.tensor, mesh, **kinds)
        else:
            tensor.apply(model, run.model.tensor, run.model.blocks, mesh, **kinds)
    if (mesh := world.submesh(run.mesh.axes("sequence"))) is not None and mesh.size() > 1:
        if run.model.folder:
            from shardlab.parallel import library_context

            length = run.data.options.get("sequence_length")
            library_context.apply(model, options.context, world.sequence, mesh.get_group(), length)
        else:
            from shardlab.parallel import context

            context.apply(model, options.context, world.sequence, mesh.get_group())
    if recipe.sync_batch_norm and world.data_group is not None and world.data_size > 1:
        batch = batch_norm.synchronize(model, world.data_group, world.device)
    experts = _blocks(model, run.model.experts)
    if (mesh := world.expert_mesh) is not None:
        from shardlab.parallel.experts import split, split_library

        (split_library if run.model.folder else split)(experts, mesh)
    low = None if recipe.precision == "full" else getattr(torch, PRECISIONS[recipe.precision].dtype)
    recompute(model, run.model.blocks, recipe.activation_checkpointing)
    if low and not run.mesh.sharded:
        # Around forward, because a pipeline calls its stages by itself.
        around_forward(model, torch.autocast(world.device.type, low))
        log.info("Applied %s autocast to the forward pass", recipe.precision)
    compile_forward(model, run.model.blocks, recipe)
    if (mesh := world.shard_mesh) is not None:
        from shardlab.parallel import fsdp

        _move_buffers(model, world.device)
        blocks, dtype = _blocks(model, run.model.blocks), getattr(torch, recipe.dtype)
        grouped = world.expert_shard_mesh
        parted = None if grouped is None else (experts, grouped)
        fsdp.apply(model, blocks, mesh, options, dtype, low=low, pipelined=run.mesh.pipelined, experts=parted)
    return batch


def recompute(model: nn.Module, patterns: list[str], mode: str) -> None:
    """Apply activation checkpointing (Chen et al., 2016, arXiv:1604.06174) to each block, in place."""
    if mode == "none":
        return
    from torch.utils.checkpoint import checkpoint

    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": True}
    if mode != "full":
        options["context_fn"] = _keep_products

    def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(block: nn.Module, *args: Any, **keywords: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(block, *args, **keywords)
            return checkpoint(forward, block, *args, **options, **keywords)

        return run

    blocks = _blocks(model, patterns)
    for block in blocks:
        around_forward(block, recomputed)
    log.info("Applied %s activation checkpointing to %d blocks", mode, len(blocks))


def compile_forward(model: nn.Module, patterns: list[str], recipe: Recipe) -> None:
    """Compile the forward of the blocks in place, as the recipe says (torch.compile)."""
    modules = _blocks(model, patterns) if recipe.compile == "blocks" else []
    for module in modules:
        # Only the forward method: hooks of FSDP and tensor parallelism stay outside the graph.
        module.forward = torch.compile(module.forward, backend=recipe.compile_backend)  # type: ignore[method-assign]
    if modules:
        log.info("Applied torch.compile to %d blocks, backend %s", len(modules), recipe.compile_backend)


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move buffers in place; ``fully_shard`` would set their data instead, which not every backend supports."""
    for module in model.modules():
        for key, buffer in module.named_buffers(recurse=False):
            if not buffer.is_meta:  # one made from parameters is loaded with them
                module._buffers[key] = buffer.to(device)


def _blocks(model: nn.Module, patterns: list[str]) -> list[nn.Module]:
    return [module for pattern in patterns for module in matching(model, pattern)]


def _keep_products() -> Any:
    """Return the contexts of one call of a selectively recomputed block, which keeps the results of matrix products and
    attention.
    """
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept = [
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    ]
    return create_selective_checkpoint_contexts(kept)
