"""Check that the ranks divided the work: samples that each put through its model, against those of the batches."""

from typing import Any

from shardlab.errors import UserError
from shardlab.runtime.batches import Step
from shardlab.runtime.distributed import World
from shardlab.runtime.tasks import Task


class SampleAudit:
    """Samples and targets of the steps that this process took."""

    def __init__(self) -> None:
        self.samples = self.targets = 0

    def add(self, step: Step) -> None:
        self.samples += step.samples
        self.targets += step.targets

    def check(self, task: Task, world: World) -> dict[str, Any]:
        """Return the samples and targets of each rank, under the names of TrainReport; a collective.

        Pipeline ranks without the model's output count nothing, ranks of a tensor-parallel group all count the same,
        and those of a context-parallel group the same samples.

        Raises:
            UserError: the ranks together did not train on each sample and target once.
        """
        ranks = world.gather((task.trained_samples, int(task.trained_targets)))
        samples, targets = zip(*ranks, strict=True)
        copies = world.dims.copies
        done = (sum(samples) / (copies * world.sequence.ranks), sum(targets) / copies)
        if done != (self.samples, self.targets):
            raise UserError(
                f"the ranks trained on {done[0]:g} samples and {done[1]:g} targets, but the batches had "
                f"{self.samples} and {self.targets}; the strategy or the task divides its batches wrongly, and "
                "nothing was saved."
            )
        return {"samples_per_rank": list(samples), "targets_per_rank": list(targets)}
