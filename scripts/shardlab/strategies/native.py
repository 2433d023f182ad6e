"""PyTorch-native strategies: tensor parallel, FSDP and DDP applied in that order, then one common step."""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from shardlab import optimizers
from shardlab.distributed import World
from shardlab.settings import Run

Groups = dict[tuple[Any, tuple[Any, ...]], list[nn.Parameter]]


class NativeEngine:
    """Single device, DDP, FSDP, HSDP and their products with tensor parallelism."""

    def __init__(self, run: Run, model: nn.Module, world: World) -> None:
        self.recipe = run.recipe
        self.plain = model.to("cpu" if run.cpu_offload else world.device)
        self.model = _parallelize(run, self.plain, world)
        self.groups = _by_placement(self.plain)
        self.optimizer = optimizers.build(run.recipe, [{"params": group} for group in self.groups.values()])

    def backward(self, loss: Tensor) -> None:
        """See Engine."""
        loss.backward()

    def step(self, learning_rate: float) -> float:
        """See Engine."""
        norm = _norm(self.groups)
        if not math.isfinite(norm):
            return norm
        if self.recipe.clip_norm is not None:
            self._scale(min(1.0, self.recipe.clip_norm / (norm + 1e-6)))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """See Engine."""
        for name, parameter in self.plain.named_parameters():
            if parameter.grad is not None:
                yield name, _whole(parameter.grad)

    def weights(self) -> dict[str, Tensor]:
        """See Engine."""
        weights = {}
        for name, value in self.plain.state_dict().items():
            whole = _whole(value)  # a collective: every rank takes part, rank 0 keeps the result
            if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
                weights[name] = whole.detach().cpu().contiguous()
        return weights

    def _scale(self, factor: float) -> None:
        for group in self.groups.values():
            torch._foreach_mul_([p.grad for p in group if p.grad is not None], factor)


def _parallelize(run: Run, model: nn.Module, world: World) -> nn.Module:
    # Which technique is chosen by the axes that the strategy names, not by their degrees:
    # FSDP on one GPU is still FSDP.
    if world.mesh is None:
        return model
    if "tp" in run.mesh:
        from shardlab.strategies import tensor

        tensor.apply(model, run.model.tensor, world.mesh["tp"])
    if "dp_shard" in run.mesh:
        from shardlab.strategies import fsdp

        axes = [axis for axis in ("dp_replicate", "dp_shard") if axis in run.mesh]
        mesh = world.mesh[tuple(axes)] if len(axes) > 1 else world.mesh["dp_shard"]
        fsdp.apply(model, run.model.blocks, mesh, cpu_offload=run.cpu_offload)
    elif "dp_replicate" in run.mesh:
        from shardlab.strategies import ddp

        return ddp.apply(model, world.mesh["dp_replicate"])
    return model


def _by_placement(model: nn.Module) -> Groups:
    """Parameters by (mesh, placements), (None, ()) for plain tensors: foreach optimizers refuse a mixture."""
    groups: Groups = defaultdict(list)
    for parameter in model.parameters():
        # By attribute, not by type: importing DTensor takes half a second that plain parameters do not need.
        groups[getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())].append(parameter)
    return dict(groups)


def _norm(groups: Groups) -> float:
    """Global L2 norm of the gradients; one reduction for each mesh axis over which a group is sharded.

    Squares are summed in float64: a float32 norm of a million values is off in the fifth digit on a CPU.
    """
    total = 0.0
    for (mesh, placements), parameters in groups.items():
        local = [cast(Any, p.grad).to_local() if mesh else p.grad for p in parameters if p.grad is not None]
        if not local:
            continue
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in local]
        square = torch.stack(norms).square().sum()
        for axis, placement in enumerate(placements):
            if not placement.is_replicate():
                square = square.to(mesh.device_type)  # offloaded gradients are on the CPU, nccl is not
                torch.distributed.all_reduce(square, group=mesh.get_group(axis))
        total += float(square)
    return math.sqrt(total)


def _whole(value: Tensor) -> Tensor:
    """The full tensor of a DTensor; a plain tensor as it is."""
    full_tensor = getattr(value, "full_tensor", None)
    return full_tensor() if full_tensor else value
