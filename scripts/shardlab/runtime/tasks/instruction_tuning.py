"""Instruction tuning: cross-entropy of the answers alone, in rows of several documents; perplexity."""

from typing import ClassVar

import numpy as np
from torch import Tensor

from shardlab.data.order import Indices
from shardlab.models._losses import IGNORE
from shardlab.models._sequence import POSITIONS
from shardlab.runtime.tasks import Batch, Inputs, language_modelling


class Task(language_modelling.Task):
    """Instruction tuning; cross-entropy of the answers' tokens, perplexity."""

    packed = True
    whole_sequences: ClassVar = {POSITIONS: 0}

    def targets(self, split: str, indices: Indices) -> int:
        return int((self.arrays(split)["targets"][indices] != IGNORE).sum())

    def batch(self, split: str, indices: Indices) -> Batch:
        arrays = self.arrays(split)
        return {
            name: self.to_device(arrays[name][indices].astype(np.int64)) for name in ("inputs", "targets", POSITIONS)
        }

    def inputs(self, batch: Batch) -> Inputs:
        positional, keywords = super().inputs(batch)
        return positional, {POSITIONS: batch[POSITIONS], **keywords}

    def targets_in(self, batch: Batch) -> Tensor:
        return (batch["targets"] != IGNORE).sum()
