"""Vision transformer (Dosovitskiy et al., 2020, arXiv:2010.11929): pre-norm blocks, class token."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._chain import Chain, Segment
from shardlab.models._layers import EncoderBlock, initialize
from shardlab.models._sequence import SequenceSplit


class Model(Chain):
    """Patches and a class token through the blocks; the class token's state is classified.

    Maps images (batch, channels, size, size) to logits (batch, classes). ``sequence``: the part of the class token and
    the patches that a rank has (see parallel/context.py); logits count where it has the first position.
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
        if image_size % patch:
            raise ValueError(f"patch {patch} does not divide image_size {image_size}")
        self.sequence = SequenceSplit()
        self.tokens = (image_size // patch) ** 2 + 1
        self.patches = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, self.tokens, dim))
        self.layers = nn.ModuleList(EncoderBlock(dim, heads, hidden, F.gelu) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.apply(self.initialize)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.class_token, std=0.02)
        nn.init.normal_(self.positions, std=0.02)

    def segments(self) -> list[Segment]:
        layers = [
            Segment((f"layers.{number}",), partial(self._layer, layer)) for number, layer in enumerate(self.layers)
        ]
        first = Segment(("patches", "class_token", "positions"), self._embed)
        return [first, *layers, Segment(("norm", "head"), self._head)]

    def _embed(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1) + self.positions
        if self.sequence.ranks == 1:
            return x
        # One layer for all patches, which costs little and leaves images as they are.
        return self.sequence.part(F.pad(x, (0, 0, 0, -self.tokens % self.sequence.count)), 1)

    def _layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        length = x.shape[1] * self.sequence.ranks
        filled = length > self.tokens  # up to a multiple of the pieces
        mask = torch.arange(length, device=x.device)[None, None, None] < self.tokens if filled else None
        return layer(x, mask)

    def _head(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x)[:, 0])
