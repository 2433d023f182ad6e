"""Optimizers and the learning rate of a step."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from shardlab.settings.recipe import Recipe

CLASSES: dict[str, type[Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adadelta": torch.optim.Adadelta,
}


def build(recipe: Recipe, parameters: Iterable[Any]) -> Optimizer:
    """The recipe's optimizer over parameters or parameter groups."""
    return CLASSES[recipe.optimizer](
        parameters,  # type: ignore[call-arg]
        lr=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
    )


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """Learning rate of an epoch, counted from 0: the closed form of torch.optim.lr_scheduler.StepLR."""
    return recipe.learning_rate * recipe.gamma**epoch
