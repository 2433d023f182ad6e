"""Regression from vectors to vectors: mean squared error."""

import torch.nn.functional as F
from torch import Tensor

from shardlab.data.order import Indices
from shardlab.runtime import tasks
from shardlab.runtime.tasks import Batch, Inputs


class Task(tasks.Task):
    """Regression from vectors to vectors; mean squared error over all elements."""

    metric_name = "mse"
    scores = False

    def targets(self, split: str, indices: Indices) -> int:
        return len(indices) * self.arrays(split)["y"].shape[1]

    def batch(self, split: str, indices: Indices) -> Batch:
        return {name: self.to_device(array[indices]) for name, array in self.arrays(split).items()}

    def inputs(self, batch: Batch) -> Inputs:
        return (batch["x"],), {}

    def targets_in(self, batch: Batch) -> int:
        return batch["y"].numel()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.mse_loss(tasks.upcast_for_sum(outputs), tasks.upcast_for_sum(batch["y"]), reduction="sum")

    def metric(self, loss: float, score: float, samples: int) -> float:
        return loss
