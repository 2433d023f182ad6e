"""Layers that several models share."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._sequence import SequenceSplit, same_document

LENGTHS_KEPT = 16
"""Number of lengths whose rotary angles are cached: a last batch, or one that is evaluated, may have another."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    documents: Tensor | None = None,
) -> Tensor:
    """Return scaled dot-product attention, grouped queries if there are fewer key heads.

    Shapes: query (batch, heads, length, head_dim), key and value (batch, kv_heads, memory length, head_dim), mask
    (batch, 1, 1, memory length) with True for keys that count; or, of causal attention, documents (batch, length): each
    position attends within its own (Krell et al., 2021, arXiv:2107.02027).
    """
    if documents is not None:
        mask, causal = same_document(documents, documents).tril(), False
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]
    )


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, arXiv:1706.03762), grouped queries if kv_heads < heads.

    The projections are separate Linear layers, and the number of heads is inferred from their outputs, so that a
    tensor-parallel plan can give each rank some of the heads without changes to this module. ``attend`` is replaced
    where sequences are split (see parallel/context.py).
    """

    def __init__(
        self, dim: int, heads: int, kv_heads: int | None = None, *, head_dim: int | None = None, bias: bool = True
    ) -> None:
        """``head_dim``: width of a head; None: dim / heads."""
        super().__init__()
        if head_dim is None and dim % heads:
            raise ValueError(f"heads {heads} does not divide dim {dim}")
        if heads % (kv_heads or heads):
            raise ValueError(f"kv_heads {kv_heads} does not divide heads {heads}")
        self.head_dim = head_dim or dim // heads
        kv_dim = self.head_dim * (kv_heads or heads)
        self.query = nn.Linear(dim, self.head_dim * heads, bias=bias)
        self.key = nn.Linear(dim, kv_dim, bias=bias)
        self.value = nn.Linear(dim, kv_dim, bias=bias)
        self.output = nn.Linear(self.head_dim * heads, dim, bias=bias)
        self.attend: Callable[..., Tensor] = attend

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Attend from x to memory (default: to x).

        Shapes: x (batch, length, dim), memory (batch, memory length, dim), mask (batch, 1, 1, memory length) with True
        for keys that count, rotary: cos and sin, see Rotary; documents (batch, whole length), see ``attend``.
        """
        memory = x if memory is None else memory
        query, key, value = (
            states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for states in (self.query(x), self.key(memory), self.value(memory))
        )
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        mixed = self.attend(query, key, value, mask, causal=causal, documents=documents)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class EncoderBlock(nn.Module):
    """Pre-norm transformer block with bidirectional attention, then an MLP."""

    def __init__(self, dim: int, heads: int, hidden: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)
        self.activation = activation

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map x (batch, length, dim) to the same shape; mask (batch, 1, 1, length) with True for keys that count."""
        x = x + self.attention(self.attention_norm(x), mask=mask)
        return x + self.down(self.activation(self.up(self.mlp_norm(x))))


class Rotary(nn.Module):
    """Angles of the rotary embedding (Su et al., 2021, arXiv:2104.09864), computed once for all layers and steps.

    On a GPU they take a dozen small kernels, which every layer would launch again. ``sequence``: the part of every
    sequence that a rank has (see parallel/context.py).
    """

    def __init__(self, head_dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.sequence = SequenceSplit()
        self.head_dim, self.base = head_dim, base
        self._known: dict[tuple[SequenceSplit, int, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def angles(self, length: int, like: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each (length, head_dim / 2), on the device and in the dtype of ``like``.

        With ``positions`` (batch, whole length), those of each token in its document: (batch, 1, length, head_dim / 2).
        """
        if positions is None:
            return self._table(self.sequence, length, like)
        cos, sin = self._table(SequenceSplit(), positions.shape[1], like)
        own = self.sequence.part(positions, 1)
        return cos[own].unsqueeze(1), sin[own].unsqueeze(1)

    def _table(self, sequence: SequenceSplit, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            return self._computed(sequence, length, like)  # part of the compiled graph, which fuses it
        key = sequence, length, like.device, like.dtype
        if key not in self._known:
            if len(self._known) >= LENGTHS_KEPT:
                self._known.clear()
            self._known[key] = self._computed(sequence, length, like)
        return self._known[key]

    def _computed(self, sequence: SequenceSplit, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        exponents = torch.arange(0, self.head_dim, 2, device=like.device, dtype=torch.float64) / self.head_dim
        positions = sequence.positions(length, like.device)
        angles = torch.outer(positions.double(), self.base**-exponents)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of x (batch, heads, length, head_dim) by the angles (see Rotary)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def initialize(module: nn.Module, std: float = 0.02) -> None:
    """Draw the weights of Linear and Embedding from N(0, std^2) and set biases to 0, as GPT-2 and Llama do."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
