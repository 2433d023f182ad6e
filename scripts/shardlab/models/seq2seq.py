"""Encoder-decoder transformer (Vaswani et al., 2017, arXiv:1706.03762), pre-norm, learned positions."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._chain import Chain, Segment
from shardlab.models._layers import Attention, EncoderBlock, initialize
from shardlab.models._losses import LOSS_ARGUMENTS, sample_losses
from shardlab.models._sequence import SequenceSplit

MASK = ("mask",)
"""Arguments, besides its state, of a piece that attends to the document."""


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the document, then a ReLU MLP."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.cross_norm = nn.LayerNorm(dim)
        self.cross = Attention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Map x (batch, summary, dim), memory (batch, document, dim), mask (batch, 1, 1, document) to x's shape."""
        x = x + self.attention(self.attention_norm(x), causal=True)
        x = x + self.cross(self.cross_norm(x), memory, mask=mask)
        return x + self.down(F.relu(self.up(self.mlp_norm(x))))


class Model(Chain):
    """Shared embedding, encoder blocks, decoder blocks, output projection.

    Maps token ids document (batch, d) and summary (batch, s), mask (batch, d) with True where a document has a token,
    to logits (batch, s, vocab_size), or with ``targets`` (see ``sample_losses``) to the loss of each sample, (batch,).
    The state between the pieces is (document side, summary side). ``sequence``: the part of both that a rank has (see
    parallel/context.py).
    """

    initialize = staticmethod(initialize)

    def __init__(
        self,
        *,
        vocab_size: int,
        document_tokens: int,
        summary_tokens: int,
        dim: int,
        layers: int,
        heads: int,
        hidden: int,
    ) -> None:
        super().__init__()
        self.sequence = SequenceSplit()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.document_positions = nn.Parameter(torch.empty(document_tokens, dim))
        self.summary_positions = nn.Parameter(torch.empty(summary_tokens, dim))
        self.encoder = nn.ModuleList(EncoderBlock(dim, heads, hidden, F.relu) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(dim)
        self.decoder = nn.ModuleList(DecoderBlock(dim, heads, hidden) for _ in range(layers))
        self.decoder_norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.apply(self.initialize)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.document_positions, std=0.02)
        nn.init.normal_(self.summary_positions, std=0.02)

    def segments(self) -> list[Segment]:
        last = len(self.encoder) - 1
        encoder = [
            Segment((f"encoder.{n}",), partial(self._encode, block, n == last), MASK)
            for n, block in enumerate(self.encoder)
        ]
        encoder[last] = encoder[last]._replace(names=(f"encoder.{last}", "encoder_norm"))
        decoder = [
            Segment((f"decoder.{n}",), partial(self._decode, block), MASK) for n, block in enumerate(self.decoder)
        ]
        first = Segment(("embedding", "document_positions", "summary_positions"), self._embed)
        return [first, *encoder, *decoder, Segment(("decoder_norm", "output"), self._head, LOSS_ARGUMENTS)]

    def _embed(self, document: Tensor, summary: Tensor) -> tuple[Tensor, Tensor]:
        # Embed both sides here, so that the embedding belongs to one piece.
        return (
            self.embedding(document) + self.sequence.rows(self.document_positions, document.shape[1]),
            self.embedding(summary) + self.sequence.rows(self.summary_positions, summary.shape[1]),
        )

    def _encode(self, block: nn.Module, last: bool, memory: Tensor, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        memory = block(memory, mask[:, None, None, :])
        return self.encoder_norm(memory) if last else memory, x

    def _decode(self, block: nn.Module, memory: Tensor, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return memory, block(x, memory, mask[:, None, None, :])

    def _head(self, memory: Tensor, x: Tensor, targets: Tensor | None = None, label_smoothing: float = 0.0) -> Tensor:
        x = self.decoder_norm(x)
        return self.output(x) if targets is None else sample_losses(self.output, x, targets, label_smoothing)
