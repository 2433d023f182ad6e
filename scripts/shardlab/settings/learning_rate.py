"""Learning-rate schedules: pure functions of the step, so that a run that goes on needs no state. Imports no torch."""

import math
from collections.abc import Callable
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat

from shardlab.schema import Strict, one_of


def _constant(schedule: "Schedule", progress: float, epoch: int) -> float:
    return 1.0


def _step(schedule: "Schedule", progress: float, epoch: int) -> float:
    """The closed form of torch.optim.lr_scheduler.StepLR, once an epoch."""
    return schedule.gamma**epoch


def _linear(schedule: "Schedule", progress: float, epoch: int) -> float:
    return 1.0 + (schedule.end - 1.0) * progress


def _cosine(schedule: "Schedule", progress: float, epoch: int) -> float:
    """Loshchilov and Hutter, 2017 (arXiv:1608.03983), without restarts."""
    return schedule.end + (1.0 - schedule.end) * (1.0 + math.cos(math.pi * progress)) / 2


SCHEDULES: dict[str, Callable[["Schedule", float, int], float]] = {
    "constant": _constant,
    "step": _step,
    "linear": _linear,
    "cosine": _cosine,
}
"""Name: factor of the learning rate from the schedule, the progress after the warm-up (0 to 1) and the epoch."""


class Schedule(Strict):
    """How the learning rate changes: factors of recipe.optimizer.learning_rate."""

    name: Annotated[str, *one_of(SCHEDULES)] = Field(
        "constant", description="constant; step: times gamma after each epoch; linear or cosine: down to end."
    )
    gamma: PositiveFloat = Field(1.0, description="step: factor per epoch.")
    end: float = Field(0.0, ge=0, description="linear, cosine: factor that the last step would be followed by.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps over which the rate first grows, in equal parts.")

    def factor(self, step: int, steps: int, steps_per_epoch: int) -> float:
        """Factor at ``step`` of ``steps``, both counted over all epochs, the step from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        progress = (step - self.warmup_steps) / max(steps - self.warmup_steps, 1)
        return SCHEDULES[self.name](self, progress, step // steps_per_epoch)
