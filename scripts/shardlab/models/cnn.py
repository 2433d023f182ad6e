"""Convolutional network of the PyTorch MNIST example: 1,199,882 parameters at 28 x 28."""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._chain import Chain, Segment

ACTIVATIONS: dict[str, Callable[..., Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class Model(Chain):
    """Conv 32, conv 64, max-pool, dropout, dense, dropout, dense: (batch, channels, size, size) to logits.

    ``relu`` amplifies rounding, since its derivative jumps at 0; ``gelu`` does not (docs/equality.md).
    """

    def __init__(
        self,
        *,
        channels: int,
        image_size: int,
        classes: int,
        hidden: int = 128,
        dropout1: float = 0.0,
        dropout2: float = 0.0,
        activation: Literal["relu", "gelu"] = "relu",
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        pooled = (image_size - 4) // 2
        self.convolution1 = nn.Conv2d(channels, 32, kernel_size=3)
        self.convolution2 = nn.Conv2d(32, 64, kernel_size=3)
        self.dropout1 = nn.Dropout(dropout1)
        self.dense1 = nn.Linear(64 * pooled * pooled, hidden)
        self.dropout2 = nn.Dropout(dropout2)
        self.dense2 = nn.Linear(hidden, classes)

    def segments(self) -> list[Segment]:
        return [
            Segment(("convolution1",), lambda x: self.activation(self.convolution1(x))),
            Segment(("convolution2",), lambda x: self.activation(self.convolution2(x))),
            Segment(("dropout1", "dense1"), self._dense1),
            Segment(("dropout2", "dense2"), lambda x: self.dense2(self.dropout2(x))),
        ]

    def _dense1(self, x: Tensor) -> Tensor:
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        return self.activation(self.dense1(x))
