"""Optimizer of a recipe."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

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
