"""Two linear layers."""

import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    """Linear inputs-hidden, ReLU, Linear hidden-outputs."""

    def __init__(self, *, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs) to (batch, outputs)."""
        return self.output(F.relu(self.hidden(x)))
