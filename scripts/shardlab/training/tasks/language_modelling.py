"""Language modeling (next token): cross-entropy, perplexity."""

import math

import numpy as np
from torch import Tensor

from shardlab.data.order import Indices
from shardlab.training import tasks
from shardlab.training.tasks import Batch, Inputs, token_loss


class Task(tasks.Task):
    """Language modeling (next token); cross-entropy, perplexity."""

    metric_name = "perplexity"
    of_tokens = True
    scores = False

    def targets(self, split: str, indices: Indices) -> int:
        return len(indices) * (self.arrays(split)["tokens"].shape[1] - 1)

    def batch(self, split: str, indices: Indices) -> Batch:
        return {"tokens": self.to_device(self.arrays(split)["tokens"][indices].astype(np.int64))}

    def inputs(self, batch: Batch) -> Inputs:
        return (batch["tokens"][:, :-1],), self.chunks(batch["tokens"][:, 1:])

    def targets_in(self, batch: Batch) -> int:
        return batch["tokens"][:, 1:].numel()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return token_loss(outputs, batch["tokens"][:, 1:])

    def metric(self, loss: float, score: float, samples: int) -> float:
        return math.exp(min(loss, 700.0))
