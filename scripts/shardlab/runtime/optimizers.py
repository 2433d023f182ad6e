"""Optimizer of a recipe."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shardlab.settings import recipe


def build(settings: recipe.Optimizer, parameters: Iterable[Any]) -> Optimizer:
    """Build the optimizer over parameters or parameter groups; each step sets the learning rate (see Recipe)."""
    chosen = recipe.OPTIMIZERS[settings.name]
    module, _, name = chosen.path.rpartition(".")
    kind: type[Optimizer] = getattr(import_module(module), name)
    groups = [*parameters]
    # PyTorch's fused kernels do not take complex parameters.
    values = [value for group in groups for value in (group["params"] if isinstance(group, dict) else [group])]
    fused = chosen.fused and not any(value.is_complex() for value in values)
    arguments: dict[str, Any] = settings.arguments | ({"fused": True} if fused else {})
    arguments |= {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    return kind(groups, **arguments)


def create_state(optimizer: Optimizer, parameter: Tensor, key: str, dtype: torch.dtype) -> None:
    """Create one tensor of a parameter's state, as zeros, where the parameter's first update would.

    A parameter that had no gradient yet has no state: its first update creates that.
    """
    if key != "step":
        optimizer.state[parameter][key] = torch.zeros_like(parameter, requires_grad=False)
        return
    counts_on_device = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
    device = parameter.device if counts_on_device else "cpu"
    optimizer.state[parameter][key] = torch.zeros((), dtype=dtype, device=device)
