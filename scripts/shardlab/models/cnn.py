"""The convolutional network of the PyTorch MNIST courses: 1,199,882 parameters at 28 x 28."""

import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    """Conv 32, conv 64, max-pool, dropout, dense 128, dropout, dense classes."""

    def __init__(
        self, *, channels: int, image_size: int, classes: int, dropout1: float = 0.0, dropout2: float = 0.0
    ) -> None:
        super().__init__()
        pooled = (image_size - 4) // 2
        self.convolution1 = nn.Conv2d(channels, 32, kernel_size=3)
        self.convolution2 = nn.Conv2d(32, 64, kernel_size=3)
        self.dropout1 = nn.Dropout(dropout1)
        self.dense1 = nn.Linear(64 * pooled * pooled, 128)
        self.dropout2 = nn.Dropout(dropout2)
        self.dense2 = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, size, size) to logits (batch, classes)."""
        x = F.relu(self.convolution1(images))
        x = F.relu(self.convolution2(x))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        x = self.dropout2(F.relu(self.dense1(x)))
        return self.dense2(x)
