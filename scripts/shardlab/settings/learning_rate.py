"""Learning-rate schedules: pure functions of the step, so that a run that resumes needs no state."""

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

from pydantic import Field, NonNegativeInt

from shardlab.schema import Strict, one_of


class Position(NamedTuple):
    """Position of a step in the training, after the warm-up."""

    step: int
    """Counted from 0."""
    steps: int
    """Total steps."""
    epoch: int
    """Counted from 0, including the warm-up."""


def _constant(schedule: "Schedule", at: Position) -> float:
    return 1.0


def _step(schedule: "Schedule", at: Position) -> float:
    """The closed form of torch.optim.lr_scheduler.StepLR, once per epoch."""
    return schedule.gamma**at.epoch


def _linear(schedule: "Schedule", at: Position) -> float:
    return 1.0 + (schedule.end - 1.0) * at.step / at.steps


def _cosine(schedule: "Schedule", at: Position) -> float:
    """Loshchilov and Hutter, 2017 (arXiv:1608.03983), without restarts."""
    return schedule.end + (1.0 - schedule.end) * (1.0 + math.cos(math.pi * at.step / at.steps)) / 2


SCHEDULES: dict[str, Callable[["Schedule", Position], float]] = {
    "constant": _constant,
    "step": _step,
    "linear": _linear,
    "cosine": _cosine,
}
"""Name: factor of the learning rate."""


class Schedule(Strict):
    """Schedule of the learning rate: factors of recipe.optimizer.learning_rate."""

    name: Annotated[str, *one_of(SCHEDULES)] = Field(
        "constant", description="constant; step: multiply by gamma after each epoch; linear or cosine: decay to end."
    )
    gamma: float = Field(1.0, gt=0, le=1e6, description="step: factor per epoch.")
    end: float = Field(
        0.0, ge=0, le=1e6, description="linear, cosine: final factor, which a step after the last one would have."
    )
    warmup_steps: NonNegativeInt = Field(0, description="Steps of linear warm-up.")

    def factor(self, step: int, steps: int, steps_per_epoch: int) -> float:
        """Return the factor at ``step`` of ``steps``, both counted over all epochs, the step from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        at = Position(step - self.warmup_steps, max(steps - self.warmup_steps, 1), step // steps_per_epoch)
        return SCHEDULES[self.name](self, at)
