"""Vision transformer (Dosovitskiy et al., 2020, arXiv:2010.11929): pre-norm blocks, class token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._layers import Attention, initialize


class Block(nn.Module):
    """Pre-norm transformer block: attention, then a GELU MLP."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


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
        self.layers = nn.ModuleList(Block(dim, heads, hidden) for _ in range(layers))
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
