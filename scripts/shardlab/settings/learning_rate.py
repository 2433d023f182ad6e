"""Learning-rate schedules: pure functions of the step, so that a run that resumes needs no state."""

import math
from collections.abc import Callable
from typing import Annotated

from pydantic import Field, NonNegativeInt

from shardlab.schema import Strict, one_of


def _constant(schedule: "Schedule", step: int, steps: int, epoch: int) -> float:
    return 1.0


def _step(schedule: "Schedule", step: int, steps: int, epoch: int) -> float:
    """The closed form of torch.optim.lr_scheduler.StepLR, once per epoch."""
    return schedule.gamma**epoch


def _linear(schedule: "Schedule", step: int, steps: int, epoch: int) -> float:
    return 1.0 + (schedule.end - 1.0) * step / steps


def _cosine(schedule: "Schedule", step: int, steps: int, epoch: int) -> float:
    """Loshchilov and Hutter, 2017 (arXiv:1608.03983), without restarts."""
    return schedule.end + (1.0 - schedule.end) * (1.0 + math.cos(math.pi * step / steps)) / 2


SCHEDULES: dict[str, Callable[["Schedule", int, int, int], float]] = {
    "constant": _constant,
    "step": _step,
    "linear": _linear,
    "cosine": _cosine,
}
"""Name: factor of the learning rate at a step, counted from 0, of so many after the warm-up, in an epoch with it."""


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
        after = max(steps - self.warmup_steps, 1)
        return SCHEDULES[self.name](self, step - self.warmup_steps, after, step // steps_per_epoch)
