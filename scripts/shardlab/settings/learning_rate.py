"""Learning-rate schedules: pure functions of the step, so that a run that resumes needs no state."""

import math
from typing import Literal

from pydantic import Field, NonNegativeInt

from shardlab.schema import Strict


class Schedule(Strict):
    """Schedule of the learning rate: factors of recipe.optimizer.learning_rate."""

    name: Literal["constant", "step", "linear", "cosine"] = Field(
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
        step_after, steps_after = step - self.warmup_steps, max(steps - self.warmup_steps, 1)
        match self.name:
            case "step":  # the closed form of torch.optim.lr_scheduler.StepLR, once per epoch
                return self.gamma ** (step // steps_per_epoch)
            case "linear":
                return 1.0 + (self.end - 1.0) * step_after / steps_after
            case "cosine":  # Loshchilov and Hutter, 2017 (arXiv:1608.03983), without restarts
                return self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * step_after / steps_after)) / 2
        return 1.0
