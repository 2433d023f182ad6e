"""One optimizer step over all ranks, the same for every strategy."""

import math
from collections.abc import Callable

import torch

from shardlab.errors import UserError
from shardlab.training.batches import Step
from shardlab.training.distributed import World
from shardlab.training.engine import Engine

Observer = Callable[[int, Engine], None]
"""Called with the step's number between backward and update, on every rank."""


def train_step(engine: Engine, step: Step, world: World, observe: Observer | None = None) -> tuple[float, float]:
    """Take a step: loss per target of the whole global batch, and gradient norm before clipping.

    Raises:
        UserError: the loss or the gradient norm is not finite; the weights are those of before.
    """
    losses = [
        # Engines average over the data-parallel ranks; the loss is a sum over all of them.
        engine.add_gradients(micro, world.data_size / step.targets, last=number == len(step.micro_batches))
        for number, micro in enumerate(step.micro_batches, 1)
    ]
    loss = float(world.sum(torch.stack(losses).sum())) / step.targets
    _stop_unless_finite("loss", loss, step.number)
    if observe:
        observe(step.number, engine)
    norm = engine.step(step.learning_rate)
    _stop_unless_finite("gradient norm", norm, step.number)
    return loss, norm


def _stop_unless_finite(what: str, value: float, step: int) -> None:
    """Raise a UserError that names the step; every rank has the same value, so all of them stop."""
    if not math.isfinite(value):
        raise UserError(
            f"the {what} of step {step} is {value}; training stopped and no weights were saved. Lower "
            "recipe.optimizer.learning_rate or set recipe.clip_norm."
        )
