"""Llama-2 decoder (Touvron et al., 2023, arXiv:2307.09288)."""

import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._chain import Chain, Segment
from shardlab.models._layers import Attention, Rotary, initialize
from shardlab.models._losses import LOSS_ARGUMENTS, sample_losses
from shardlab.models._sequence import POSITIONS, documents_of


class Block(nn.Module):
    """Pre-norm block: causal attention with rotary positions, then SwiGLU (Shazeer, 2020, arXiv:2002.05202)."""

    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int, rotary: Rotary) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = Attention(dim, heads, kv_heads, bias=False)
        self.mlp_norm = nn.RMSNorm(dim, eps=1e-5)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)
        self.rotary = rotary

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Map (batch, length, dim) to the same shape; ``positions``: see Model."""
        rotary = self.rotary.angles(x.shape[1], like=x, positions=positions)
        documents = None if positions is None else documents_of(positions)
        x = x + self.attention(self.attention_norm(x), causal=True, rotary=rotary, documents=documents)
        states = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(states)) * self.up(states))


class Model(Chain):
    """Maps token ids (batch, length) to logits (batch, length, vocab_size); position t sees tokens up to t.

    With ``positions`` (see POSITIONS), rows are documents one after the other, and position t sees its own alone. With
    ``targets`` (see ``sample_losses``), returns the loss of each sample, (batch,). Token embedding, blocks, norm,
    output projection (not tied to the embedding).
    """

    initialize = staticmethod(initialize)

    def __init__(self, *, vocab_size: int, dim: int, layers: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        rotary = Rotary(dim // heads)
        self.layers = nn.ModuleList(Block(dim, heads, kv_heads, hidden, rotary) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.apply(self.initialize)

    def segments(self) -> list[Segment]:
        layers = [Segment((f"layers.{number}",), layer, (POSITIONS,)) for number, layer in enumerate(self.layers)]
        return [
            Segment(("embedding",), self.embedding),
            *layers,
            Segment(("norm", "output"), self._head, LOSS_ARGUMENTS),
        ]

    def _head(self, x: Tensor, targets: Tensor | None = None, label_smoothing: float = 0.0) -> Tensor:
        x = self.norm(x)
        return self.output(x) if targets is None else sample_losses(self.output, x, targets, label_smoothing)
