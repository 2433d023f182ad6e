"""Image classification: cross-entropy, accuracy."""

from typing import ClassVar

from torch import Tensor, nn

from shardlab.data.order import Indices
from shardlab.models._losses import IGNORE, cross_entropy
from shardlab.runtime import tasks
from shardlab.runtime.tasks import Batch, Inputs


class Task(tasks.Task):
    """Image classification; cross-entropy, accuracy."""

    metric_name = "accuracy"
    at_first_position: ClassVar = {"labels": IGNORE}

    def targets(self, split: str, indices: Indices) -> int:
        return len(indices)

    def batch(self, split: str, indices: Indices) -> Batch:
        arrays = self.arrays(split)
        # On the device: one core of the host takes longer for it than a GPU for a step, and bytes are a fourth to copy.
        pixels = self.to_device(arrays["images"][indices]).to(self.dtype)
        # Scale bytes to about [-1, 1] with fixed constants, so no statistics of the data set are needed.
        return {"images": pixels / 127.5 - 1, "labels": self.to_device(arrays["labels"][indices])}

    def inputs(self, batch: Batch) -> Inputs:
        return (batch["images"],), {}

    def targets_in(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORE).sum()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(tasks.upcast_for_sum(outputs), batch["labels"], label_smoothing=self.smoothing)

    def score(self, model: nn.Module, outputs: Tensor, batch: Batch) -> float:
        return float((outputs.argmax(-1) == batch["labels"]).sum())
