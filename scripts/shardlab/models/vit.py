"""Vision transformer (Dosovitskiy et al., 2020, arXiv:2010.11929): pre-norm blocks, class token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._chain import Chain, Segment
from shardlab.models._layers import EncoderBlock, initialize


class Model(Chain):
    """Patches and a class token through the blocks; the class token's state is classified.

    Maps images (batch, channels, size, size) to logits (batch, classes).
    """

    initialize = staticmethod(initialize)

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
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, patches + 1, dim))
        self.layers = nn.ModuleList(EncoderBlock(dim, heads, hidden, F.gelu) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.apply(self.initialize)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters that belong to no submodule."""
        nn.init.normal_(self.class_token, std=0.02)
        nn.init.normal_(self.positions, std=0.02)

    def segments(self) -> list[Segment]:
        """See Chain."""
        layers = [Segment((f"layers.{number}",), layer) for number, layer in enumerate(self.layers)]
        first = Segment(("patches", "class_token", "positions"), self._embed)
        return [first, *layers, Segment(("norm", "head"), self._head)]

    def _embed(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1) + self.positions

    def _head(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x)[:, 0])
