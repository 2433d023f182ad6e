"""One optimizer step over all ranks, the same for every strategy."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from shardlab.errors import UserError
from shardlab.training.batches import Step
from shardlab.training.distributed import World
from shardlab.training.engine import Engine

Observer = Callable[[int, Engine], None]
"""Called with the step's number between backward and update, on every rank."""


class Wish(NamedTuple):
    """What a rank wants after a step. It travels with the loss, so that all ranks do it after the same step."""

    stop: bool = False
    """To save a checkpoint and end."""
    checkpoint: bool = False
    """To save a checkpoint."""


class Taken(NamedTuple):
    """A step over all ranks."""

    loss: float
    """Loss per target of the whole global batch."""
    norm: float
    """Global L2 norm of the gradient before clipping."""
    wish: Wish
    """What any of the ranks wants."""

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are numbers; if not, nothing was updated."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


NOTHING = Wish()


def train_step(
    engine: Engine,
    step: Step,
    world: World,
    observe: Observer | None = None,
    wish: Wish = NOTHING,
    *,
    skip: bool = False,
) -> Taken:
    """Take a step. With ``skip`` one whose loss or gradient is not finite is left out.

    Raises:
        UserError: the loss or the gradient norm is not finite; the weights are those of before.
    """
    torch.manual_seed(step.seed)
    losses = [
        # Engines average over the data-parallel ranks; the loss is a sum over all of them.
        engine.add_gradients(micro, world.data_size / step.targets, last=number == len(step.micro_batches))
        for number, micro in enumerate(step.micro_batches, 1)
    ]
    mine = torch.stack(losses).sum()
    told = world.sum(torch.stack([mine, *(mine.new_tensor(float(value)) for value in wish)])).tolist()
    loss, asked = told[0] / step.targets, Wish(*(value > 0 for value in told[1:]))
    if not skip:
        _stop_unless_finite("loss", loss, step.number)
    if observe:
        observe(step.number, engine)
    norm = engine.step(step.learning_rate) if math.isfinite(loss) else engine.drop_gradients()
    if not skip:
        _stop_unless_finite("gradient norm", norm, step.number)
    return Taken(loss, norm, asked)


def _stop_unless_finite(what: str, value: float, step: int) -> None:
    """Raise a UserError that names the step; every rank has the same value, so all of them stop."""
    if not math.isfinite(value):
        remedy = "Lower recipe.optimizer.learning_rate, set recipe.clip_norm, or recipe.non_finite to skip."
        if step == 0:
            remedy = "Nothing was learnt yet, so look at the data, the initial weights and the model's loss."
        raise UserError(f"the {what} of step {step} is {value}; training stopped and no weights were saved. {remedy}")
