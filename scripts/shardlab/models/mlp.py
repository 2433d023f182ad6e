"""Two linear layers."""

import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._chain import Chain, Segment


class Model(Chain):
    """Linear inputs-hidden, ReLU, Linear hidden-outputs: (batch, inputs) to (batch, outputs)."""

    def __init__(self, *, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, outputs)

    def segments(self) -> list[Segment]:
        return [Segment(("hidden",), self._hidden), Segment(("output",), self.output)]

    def _hidden(self, x: Tensor) -> Tensor:
        return F.relu(self.hidden(x))
