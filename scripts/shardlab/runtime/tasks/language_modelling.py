"""Language modeling (next token): cross-entropy, perplexity."""

import math
from typing import ClassVar

import numpy as np
from torch import Tensor

from shardlab.data.order import Indices
from shardlab.models._losses import IGNORE
from shardlab.runtime import tasks
from shardlab.runtime.tasks import Batch, Inputs, token_loss


class Task(tasks.Task):
    """Language modeling (next token); cross-entropy, perplexity."""

    metric_name = "perplexity"
    of_tokens = True
    sequences: ClassVar = {"inputs": 0, "targets": IGNORE}
    scores = False

    def targets(self, split: str, indices: Indices) -> int:
        return len(indices) * (self.arrays(split)["tokens"].shape[1] - 1)

    def batch(self, split: str, indices: Indices) -> Batch:
        tokens = self.to_device(self.arrays(split)["tokens"][indices].astype(np.int64))
        return {"inputs": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}

    def inputs(self, batch: Batch) -> Inputs:
        return (batch["inputs"],), self.chunks(batch["targets"])

    def targets_in(self, batch: Batch) -> Tensor | int:
        return batch["targets"].numel()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return token_loss(outputs, batch["targets"], self.smoothing)

    def metric(self, loss: float, score: float, samples: int) -> float:
        return math.exp(min(loss, 700.0))
