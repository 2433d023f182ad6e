"""Whether the ranks divided the work: what each put through its model, against the batches that were to be read."""

from typing import Any

from shardlab.errors import UserError
from shardlab.training.batches import Step
from shardlab.training.distributed import World
from shardlab.training.tasks import Task


class Work:
    """Samples and targets of the steps that this process took."""

    def __init__(self) -> None:
        self.samples = self.targets = 0

    def add(self, step: Step) -> None:
        """A step was taken."""
        self.samples += step.samples
        self.targets += step.targets

    def check(self, task: Task, world: World) -> dict[str, Any]:
        """What each rank worked on, under the names of TrainReport; a collective.

        Ranks of a pipeline without the model's output count nothing, those of a tensor-parallel group all the same.

        Raises:
            UserError: the ranks together did not train on each sample and target once.
        """
        ranks = world.gather((task.trained_samples, int(task.trained_targets)))
        samples, targets = zip(*ranks, strict=True)
        done = (sum(samples) / world.dims.copies, sum(targets) / world.dims.copies)
        if done != (self.samples, self.targets):
            raise UserError(
                f"the ranks trained on {done[0]:g} samples and {done[1]:g} targets, but the batches had "
                f"{self.samples} and {self.targets}; the strategy or the task divides its batches wrongly, and "
                "nothing was saved."
            )
        return {"samples_per_rank": list(samples), "targets_per_rank": list(targets)}
