"""One optimizer step over all ranks, the same for every strategy. Nothing in it waits for the device."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from shardlab.errors import UserError
from shardlab.training import device
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


class Figures(NamedTuple):
    """What a step came to, over all ranks."""

    loss: float
    """Loss per target of the whole global batch."""
    norm: float
    """Global L2 norm of the gradient before clipping."""
    wish: Wish
    """What any of the ranks wants."""

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Taken:
    """A step that was handed to the device, which may still be at it; its figures are on their way to the host."""

    def __init__(self, step: Step, values: Tensor, *, scaled: bool = False) -> None:
        """``values``: (4,) loss summed over the global batch, ranks that want each wish, gradient norm; ``scaled``: a
        norm that is not finite is a step that the loss scaler left out.
        """
        self.scaled = scaled
        self.step, self._values = replace(step, micro_batches=[]), device.Arriving(values)  # the batches can go

    def figures(self, *, skip: bool = False) -> Figures:
        """Its figures; waits for the step to end. ``skip``: see ``train_step``.

        Raises:
            UserError: loss or gradient norm is not finite: the weights are spoilt from this step on.
        """
        loss, *wishes, norm = self._values.tolist()
        figures = Figures(loss / self.step.targets, norm, Wish(*(ranks > 0 for ranks in wishes)))
        if not skip:
            # Every rank has the same values, so all of them stop.
            _stop_unless_finite("loss", figures.loss, self.step.number)
            if not self.scaled:
                _stop_unless_finite("gradient norm", figures.norm, self.step.number)
        return figures


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
    """Hand a step to the device. With ``skip`` it waits for its figures; if one is not finite nothing is updated."""
    device.seed(world.device, step.seed)
    losses = [
        # Engines average over the data-parallel ranks; the loss is a sum over all of them.
        engine.add_gradients(micro, world.data_size / step.targets, last=number == len(step.micro_batches))
        for number, micro in enumerate(step.micro_batches, 1)
    ]
    mine = torch.stack(losses).sum()
    told = world.sum(torch.stack([mine, *(mine.new_full((), float(value)) for value in wish)]))
    if observe:
        observe(step.number, engine)
    if skip and not math.isfinite(float(told[0])):
        engine.drop_gradients()
        norm = told.new_full((), math.nan)
    else:
        norm = engine.step(step.learning_rate)
    return Taken(step, torch.cat([told, norm.reshape(1)]), scaled=engine.scales_loss)


def _stop_unless_finite(what: str, value: float, step: int) -> None:
    """Raise a UserError that names the step."""
    if not math.isfinite(value):
        remedy = "Lower recipe.optimizer.learning_rate, set recipe.clip_norm, or recipe.non_finite to skip."
        if step == 0:
            remedy = "Nothing was learnt yet, so look at the data, the initial weights and the model's loss."
        raise UserError(f"the {what} of step {step} is {value}; training stopped and no weights were saved. {remedy}")
