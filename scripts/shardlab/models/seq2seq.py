"""Encoder-decoder transformer (Vaswani et al., 2017, arXiv:1706.03762), pre-norm, learned positions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._layers import Attention, EncoderBlock, initialize


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
        """x (batch, summary, dim), memory (batch, document, dim), mask (batch, 1, 1, document)."""
        x = x + self.attention(self.attention_norm(x), causal=True)
        x = x + self.cross(self.cross_norm(x), memory, mask=mask)
        return x + self.down(F.relu(self.up(self.mlp_norm(x))))


class Model(nn.Module):
    """One embedding for both sides, encoder blocks, decoder blocks, output projection."""

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
        self.embedding = nn.Embedding(vocab_size, dim)
        self.document_positions = nn.Parameter(torch.randn(document_tokens, dim) * 0.02)
        self.summary_positions = nn.Parameter(torch.randn(summary_tokens, dim) * 0.02)
        self.encoder = nn.ModuleList(EncoderBlock(dim, heads, hidden, F.relu) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(dim)
        self.decoder = nn.ModuleList(DecoderBlock(dim, heads, hidden) for _ in range(layers))
        self.decoder_norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.apply(initialize)

    def forward(self, document: Tensor, document_mask: Tensor, summary: Tensor) -> Tensor:
        """Token ids document (batch, d) with mask (batch, d), summary (batch, s); logits (batch, s, vocab_size)."""
        mask = document_mask[:, None, None, :]
        memory = self.embedding(document) + self.document_positions[: document.shape[1]]
        for block in self.encoder:
            memory = block(memory, mask)
        memory = self.encoder_norm(memory)
        x = self.embedding(summary) + self.summary_positions[: summary.shape[1]]
        for block in self.decoder:
            x = block(x, memory, mask)
        return self.output(self.decoder_norm(x))
