"""The recipe's optimizer."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from torch.optim import Optimizer

from shardlab.settings import recipe


def build(settings: recipe.Optimizer, parameters: Iterable[Any]) -> Optimizer:
    """The optimizer over parameters or parameter groups; each step sets its learning rate (Recipe.learning_rate)."""
    module, _, name = recipe.OPTIMIZERS[settings.name].path.rpartition(".")
    kind: type[Optimizer] = getattr(import_module(module), name)
    return kind(
        parameters,
        lr=settings.learning_rate,  # type: ignore[call-arg]
        weight_decay=settings.weight_decay,
        **settings.arguments,
    )
