"""Vision transformer (Dosovitskiy et al., 2020, arXiv:2010.11929): pre-norm blocks, class token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._layers import EncoderBlock, initialize


class Model(nn.Module):
    """Patches and a class token through the blocks; the class token's state is classified."""

    def __init__(
        self,
        *,
        channels: int,
        image_size: int,
        classes: int,
        patch: int,
        dim: int,
        layers: int,
        heads: int,
        hidden: int,
    ) -> None:
        super().__init__()
        patches = (image_size // patch) ** 2
        self.patches = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, patches + 1, dim) * 0.02)
        self.layers = nn.ModuleList(EncoderBlock(dim, heads, hidden, F.gelu) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.apply(initialize)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, size, size) to logits (batch, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))
