"""Exponential moving average of the trained weights (Tarvainen and Valpola, 2017, arXiv:1703.01780)."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from shardlab.runtime.distributed import local

EMA = "ema"
"""Of a parameter's average among its optimizer states, in checkpoints."""


class WeightAverage:
    """After each update ``decay * average + (1 - decay) * weights``; before the first one, the average is the weights.

    It is held as the weights are, so that no rank has to send anything. ``torch.optim.swa_utils.AveragedModel`` copies
    the whole module instead, which FSDP refuses, and begins with the weights after the first update: only its
    arithmetic is used.
    """

    def __init__(self, decay: float | None, weights: Mapping[str, Tensor]) -> None:
        """``weights`` are updated in place. Without ``decay`` there is no average."""
        self.weights = weights if decay is not None else {}
        self.tensors = {name: value.detach().clone() for name, value in self.weights.items()}
        self._update = get_ema_multi_avg_fn(decay or 0.0)

    def update(self) -> None:
        """Take the weights after an update into account."""
        groups: dict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for name, average in self.tensors.items():
            groups[average.device, average.dtype].append((local(average), local(self.weights[name].detach())))
        for pairs in groups.values():
            averages, weights = map(list, zip(*pairs, strict=True))
            self._update(averages, weights, 0)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and average."""
        for name, average in self.tensors.items():
            weights = self.weights[name]
            kept = weights.detach().clone()
            weights.copy_(average)
            average.copy_(kept)

    def states(self) -> dict[str, Tensor]:
        """Return the averages under the names of optimizer states."""
        return {f"{name}/{EMA}": average for name, average in self.tensors.items()}
