"""Decoder with a mixture of experts in each block (Mixtral, arXiv:2401.04088; DeepSeek-V3, arXiv:2412.19437)."""

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models._chain import Chain, Segment
from shardlab.models._experts import Experts, Router
from shardlab.models._layers import Attention, Rotary, initialize
from shardlab.models._losses import LOSS_ARGUMENTS, sample_losses


class Block(nn.Module):
    """Pre-norm block: causal attention with rotary positions, then the experts that a router chooses."""

    def __init__(
        self, dim: int, attention: Attention, rotary: Rotary, router: Router, experts: Experts, shared: Experts
    ) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = attention
        self.mlp_norm = nn.RMSNorm(dim, eps=1e-5)
        self.router, self.experts, self.shared = router, experts, shared
        self.rotary = rotary

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, length, dim) to the same shape; with the load and the imbalance of each sample (see Routing).

        The load has one more column: in the first sample's row, the number of rows that this rank's experts computed.
        Where no token is dropped, its sum over the ranks is that of the others.
        """
        rotary = self.rotary.angles(x.shape[1], like=x)
        x = x + self.attention(self.attention_norm(x), causal=True, rotary=rotary)
        states = self.mlp_norm(x)
        weights, ids, load, imbalance = self.router(states)
        mixed, computed = self.experts(states, weights, ids)
        x = x + mixed
        if self.shared.experts:
            x = x + self.shared(states)
        first = F.pad(computed.to(load).view(1, 1), (0, 0, 0, len(load) - 1))
        return x, torch.cat([load, first], dim=1), imbalance


class Model(Chain):
    """Maps token ids (batch, length) to logits (batch, length, vocab_size); position t sees tokens up to t.

    With ``targets`` (see ``sample_losses``), returns the loss of each sample, (batch,), instead of logits. In training
    mode it also returns the tokens of each sample per layer and expert, and the rows that this rank's experts computed
    (see Block), (batch, layers, experts + 1), int32; and with ``auxiliary`` that factor times the imbalance, summed
    over layers and positions, to add to each sample's loss, (batch,). As each sample has its own, their sum does not
    depend on how a batch is divided.
    """

    initialize = staticmethod(initialize)

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int | None = None,
        hidden: int,
        experts: int,
        top_k: int,
        shared: int = 0,
        scores: str = "softmax",
        normalize: bool = True,
        scale: float = 1.0,
        bias_rate: float = 0.0,
        auxiliary: float = 0.0,
    ) -> None:
        """``hidden``: width of each expert; ``shared``: number of experts that every token takes; ``bias_rate``: step
        of the bias that balances the load, 0: no bias; ``scores``, ``normalize`` and ``scale``: see Router.
        """
        super().__init__()
        self.bias_rate, self.auxiliary = bias_rate, auxiliary
        self.load_shape = layers, experts
        self.embedding = nn.Embedding(vocab_size, dim)
        rotary = Rotary(head_dim or dim // heads)
        self.layers = nn.ModuleList(
            Block(
                dim,
                Attention(dim, heads, kv_heads, head_dim=head_dim, bias=False),
                rotary,
                Router(dim, experts, top_k, scores=scores, normalize=normalize, scale=scale, biased=bool(bias_rate)),
                Experts(dim, hidden, experts),
                Experts(dim, hidden, shared),
            )
            for _ in range(layers)
        )
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.apply(self.initialize)

    def segments(self) -> list[Segment]:
        layers = [
            Segment((f"layers.{number}",), partial(self._layer, layer)) for number, layer in enumerate(self.layers)
        ]
        return [
            Segment(("embedding",), self.embedding),
            *layers,
            Segment(("norm", "output"), self._head, LOSS_ARGUMENTS),
        ]

    def balance(self, load: Tensor) -> None:
        """Move the routers' biases by the load of a step over all ranks, (layers, experts)."""
        for layer, tokens in zip(self.layers, load, strict=True):
            if layer is not None:  # on another pipeline stage
                cast(Block, layer).router.balance(tokens, self.bias_rate)

    def _layer(
        self, layer: nn.Module, x: Tensor, load: Tensor | None = None, auxiliary: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        length = x.shape[1]
        x, own, imbalance = layer(x)
        # A copy also for the first layer: a zero-bubble pipeline cannot detach views.
        load = torch.cat([own[:, None]] if load is None else [load, own[:, None]], dim=1)
        if not self.auxiliary:
            return x, load
        weighted = (self.auxiliary * length) * imbalance
        return x, load, weighted if auxiliary is None else auxiliary + weighted

    def _head(
        self,
        x: Tensor,
        load: Tensor,
        auxiliary: Tensor | None = None,
        targets: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor | tuple[Tensor, ...]:
        x = self.norm(x)
        result = self.output(x) if targets is None else sample_losses(self.output, x, targets, label_smoothing)
        if not self.training:
            return result
        return (result, load) if auxiliary is None else (result, load, auxiliary)
