"""One optimizer step over all ranks, the same for every strategy. Nothing in it waits for the device."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shardlab.errors import UserError
from shardlab.runtime import device
from shardlab.runtime.batches import Step
from shardlab.runtime.distributed import World
from shardlab.runtime.engine import Engine

Observer = Callable[[int, Engine], None]
"""Called with the step's number between the backward pass and the update, on every rank."""


class ControlFlags(NamedTuple):
    """A rank's requests after a step. They travel with the loss, so that all ranks act on them after the same step."""

    stop: bool = False
    """Save a checkpoint and end."""
    checkpoint: bool = False
    """Save a checkpoint."""


EXPERT_METRICS = ("expert_load", "dropped_tokens")


class StepMetrics(NamedTuple):
    """Metrics of a step, over all ranks."""

    loss: float
    """Loss per target of the whole global batch."""
    norm: float
    """Global L2 norm of the gradient before clipping."""
    flags: ControlFlags
    """Requests of any of the ranks."""
    expert_load: list[list[int]] | None = None
    """Tokens per layer and expert; None for a model without experts."""
    dropped_tokens: int | None = None
    """Choices of experts, over all layers, that no expert computed."""

    @property
    def experts(self) -> dict[str, Any]:
        """Return the figures of experts by name; empty for a model without them."""
        return {} if self.expert_load is None else {key: getattr(self, key) for key in EXPERT_METRICS}

    @property
    def finite(self) -> bool:
        """True if loss and gradient norm are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class PendingStep:
    """A step handed to the device, which may still be computing it; its metrics are being copied to the host."""

    def __init__(self, step: Step, values: Tensor, *, experts: int = 0, scaled: bool = False) -> None:
        """``values``: loss summed over the global batch, number of ranks with each request, gradient norm, then each
        layer's tokens per expert, ``experts`` of them, and its dropped rows; ``scaled``: a non-finite norm means that
        the loss scaler skipped the step.
        """
        self.scaled, self._experts = scaled, experts
        self.step, self._values = replace(step, micro_batches=[]), device.Arriving(values)  # free the batches

    def metrics(self, *, unchecked: bool = False) -> StepMetrics:
        """Return the step's metrics; waits for the step to end.

        Raises:
            UserError: loss or gradient norm is not finite, so the weights are invalid from this step on; not if
                ``unchecked``.
        """
        loss, stop, checkpoint, norm, *tokens = self._values.tolist()
        metrics = StepMetrics(loss / self.step.targets, norm, ControlFlags(stop > 0, checkpoint > 0))
        if self._experts:
            layers = range(0, len(tokens), self._experts + 1)
            counts = [[round(count) for count in tokens[first : first + self._experts + 1]] for first in layers]
            load = [layer[:-1] for layer in counts]
            metrics = metrics._replace(expert_load=load, dropped_tokens=sum(layer[-1] for layer in counts))
        if not unchecked:
            # Every rank has the same values, so all of them stop.
            _stop_unless_finite("loss", metrics.loss, self.step.number)
            if not self.scaled:
                _stop_unless_finite("gradient norm", metrics.norm, self.step.number)
        return metrics


NO_FLAGS = ControlFlags()


def train_step(
    engine: Engine,
    step: Step,
    world: World,
    observe: Observer | None = None,
    flags: ControlFlags = NO_FLAGS,
) -> PendingStep:
    """Hand a step to the device."""
    device.seed(world.device, step.seed)
    losses = [
        # Engines average over the ranks with other samples or parts of sequences; the loss is a sum over all of them.
        engine.forward_backward(micro, world.dims.loss_parts / step.targets, last=number == len(step.micro_batches))
        for number, micro in enumerate(step.micro_batches, 1)
    ]
    local_loss = torch.stack(losses).sum()
    values = torch.stack([local_loss, *(local_loss.new_full((), float(value)) for value in flags)])
    load = engine.expert_load()
    if load is None:
        load = values.new_zeros(0, 1)
    whole = world.sum(torch.cat([values, load.flatten().to(values.dtype)]))
    reduced, tokens = whole.split([len(values), load.numel()])
    if observe:
        observe(step.number, engine)
    norm = engine.step(step.learning_rate)
    if load.numel() and (not engine.scales_loss or math.isfinite(float(norm))):  # else the scaler skipped the step
        engine.balance(tokens.view_as(load)[:, :-1])
    engine.statistics.share()
    values = torch.cat([reduced, norm.reshape(1), tokens])
    return PendingStep(step, values, experts=load.shape[1] - 1, scaled=engine.scales_loss)


def _stop_unless_finite(what: str, value: float, step: int) -> None:
    """Raise a UserError that names the step."""
    if not math.isfinite(value):
        remedy = "Lower recipe.optimizer.learning_rate, or set recipe.max_grad_norm."
        if step == 0:
            remedy = "This is the first step, so check data, initial weights, the model's loss and recipe.dtype."
        raise UserError(f"the {what} of step {step} is {value}; training stopped and no weights were saved. {remedy}")
