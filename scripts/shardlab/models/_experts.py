"""Mixture of experts without dropped tokens: a router, and experts as stacked parameters.

Sources: Shazeer et al., 2017 (arXiv:1701.06538), Mixtral (arXiv:2401.04088), DeepSeek-V3 (arXiv:2412.19437).
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from shardlab.models._sequence import SequenceSplit

Compute = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps rows (rows, dim), sorted by expert, and the number of rows of each expert to rows of the same shape, and the
number of rows that the experts of this rank computed, a scalar.
"""
STD = 0.02
ALIGNMENT = 16
"""Bytes that a row's size must be a multiple of in a grouped product."""


class Routing(NamedTuple):
    """Experts of each token. Shapes: (batch, length, top_k) but for the last two."""

    weights: Tensor
    """Factor of each chosen expert's output."""
    ids: Tensor
    """Number of each chosen expert."""
    load: Tensor
    """Tokens of each sample per expert: (batch, experts), int32."""
    imbalance: Tensor
    """Sequence-wise balance loss of each sample (DeepSeek-V3, eq. 17 to 20): 1 if balanced; (batch,).

    If sequences are split, by the load of whole ones: then the mean over the ranks is the loss of whole sequences.
    """


class Router(nn.Module):
    """Scores of the experts for each token, of which the ``top_k`` largest are chosen.

    With ``biased``, experts are chosen by scores plus a bias, which is not trained: ``balance`` adjusts it. Scores are
    computed in float32 at least, as rounding would flip the choice.
    """

    bias: Tensor | None

    def __init__(
        self, dim: int, experts: int, top_k: int, *, scores: str, normalize: bool, scale: float, biased: bool
    ) -> None:
        """``scores``: softmax or sigmoid; ``normalize``: divide a token's weights by their sum; ``scale``: multiply
        them by this.
        """
        super().__init__()
        if not 0 < top_k <= experts:
            raise ValueError(f"top_k {top_k} is not between 1 and the number of experts, {experts}")
        if top_k == 1 and normalize:
            raise ValueError(
                "with top_k 1 a normalized weight is always 1, and the router learns nothing; set normalize to false"
            )
        if scores not in ("softmax", "sigmoid"):
            raise ValueError(f"scores are softmax or sigmoid, not {scores}")
        self.experts, self.top_k, self.scores, self.normalize, self.scale = experts, top_k, scores, normalize, scale
        self.weight = nn.Parameter(torch.empty(experts, dim))
        self.register_buffer("bias", torch.zeros(experts) if biased else None)
        self.sequence = SequenceSplit()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=STD)

    def forward(self, x: Tensor) -> Routing:
        """Choose the experts of x (batch, length, dim)."""
        precise = torch.promote_types(x.dtype, torch.float32)
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(precise), self.weight.to(precise))
        scores = logits.softmax(-1) if self.scores == "softmax" else logits.sigmoid()
        ids = (scores if self.bias is None else scores + self.bias).topk(self.top_k, dim=-1).indices
        weights = scores.gather(-1, ids)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        load = tokens_per_expert(ids.flatten(1), self.experts)
        shares = scores if self.scores == "softmax" else scores / scores.sum(-1, keepdim=True)
        length = x.shape[1] * self.sequence.ranks
        relative = self.over_sequence(load).to(precise) * (self.experts / (self.top_k * length))
        return Routing(weights * self.scale, ids, load, (relative * shares.mean(1)).sum(-1))

    def over_sequence(self, load: Tensor) -> Tensor:
        """Sum a load over the parts of the sequences; context parallelism, which splits them, replaces this method."""
        return load

    @torch.no_grad()
    def balance(self, load: Tensor, rate: float) -> None:
        """Move the bias by ``rate`` towards experts with less than the mean load, away from the others (DeepSeek-V3,
        section 2.1.2).

        ``load``: (experts,) tokens of a step over all ranks.
        """
        if self.bias is not None:
            missing = load.sum() - load * self.experts  # exact: no rounding decides the sign
            self.bias += rate * missing.sign().to(self.bias)


class Experts(nn.Module):
    """SwiGLU networks (Shazeer, 2020, arXiv:2002.05202) with stacked parameters.

    Shapes: gate and up (experts, hidden, dim), down (experts, dim, hidden).
    """

    def __init__(self, dim: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.experts = experts
        if experts:
            self.gate = nn.Parameter(torch.empty(experts, hidden, dim))
            self.up = nn.Parameter(torch.empty(experts, hidden, dim))
            self.down = nn.Parameter(torch.empty(experts, dim, hidden))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=STD)

    def matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate, up and down as plain tensors; tensor parallelism replaces this method."""
        return self.gate, self.up, self.down

    def forward(
        self, x: Tensor, weights: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Map x (batch, length, dim) to the weighted sum of each token's experts (see Routing), of the same shape, with
        the number of rows that this rank's experts computed (see Compute).

        Without weights and ids, every expert takes every token, with weight 1: the sum alone.
        """
        if weights is None or ids is None:
            return torch.stack([_swiglu(x, *each) for each in self._unbound()]).sum(0)
        return dispatch(x, weights, ids, self.experts, self.compute)

    def compute(self, rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        matrices = self.matrices()
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else rows.dtype
        aligned = all(matrix.shape[-1] * dtype.itemsize % ALIGNMENT == 0 for matrix in matrices)
        if rows.device.type == "cuda" and dtype == torch.bfloat16 and aligned:
            return _grouped(rows.to(dtype), counts, *(matrix.to(dtype) for matrix in matrices)), counts.sum()
        parts = rows.split(sizes(counts, len(rows)))
        # Also for experts without rows, whose gradient is then 0 and not None: the optimizer treats them like others.
        computed = torch.cat([_swiglu(part, *each) for part, each in zip(parts, self._unbound(), strict=True)])
        return computed, counts.sum()

    def _unbound(self) -> list[tuple[Tensor, ...]]:
        return list(zip(*(matrix.unbind(0) for matrix in self.matrices()), strict=True))


def dispatch(x: Tensor, weights: Tensor, ids: Tensor, experts: int, compute: Compute) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of what the experts of each token make of it, and the number of rows that this rank's
    experts computed; no token is dropped.

    Shapes: x (batch, length, dim), weights and ids (batch, length, top_k).
    """
    top_k, chosen = ids.shape[-1], ids.flatten()
    order = chosen.sort(stable=True).indices
    rows, computed = compute(x.flatten(0, 1)[order // top_k], tokens_per_expert(chosen, experts))
    rows = (rows * weights.flatten()[order, None]).to(x.dtype)
    # A sum over each token's rows in their order, not an index_add, whose order a GPU does not fix.
    return rows[inverse(order)].unflatten(0, (*ids.shape[:2], top_k)).sum(2), computed


def inverse(order: Tensor) -> Tensor:
    """Return the permutation that undoes ``order``, both (rows,)."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def tokens_per_expert(ids: Tensor, experts: int) -> Tensor:
    """Count each expert's number in the last dimension of ids (..., choices): (..., experts), int32."""
    zeros = torch.zeros(*ids.shape[:-1], experts, dtype=torch.int32, device=ids.device)
    return zeros.scatter_add_(-1, ids, torch.ones_like(ids, dtype=torch.int32))


def _swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _grouped(rows: Tensor, counts: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Apply each expert to its rows in one kernel per matrix; the host does not wait for the counts."""
    ends = counts.cumsum(0, dtype=torch.int32)
    gate, up, down = (_Idle.apply(matrix, counts) for matrix in (gate, up, down))  # type: ignore[no-untyped-call]

    def product(left: Tensor, right: Tensor) -> Tensor:
        return torch._grouped_mm(left, right.transpose(1, 2), offs=ends)

    return product(F.silu(product(rows, gate)) * product(rows, up), down)


class _Idle(torch.autograd.Function):
    """The identity; the gradient of experts without rows is 0, where some kernels leave memory that nobody wrote
    (pytorch #172439).
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, matrix: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(counts)
        return matrix.view_as(matrix)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (counts,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient.masked_fill((counts == 0)[:, None, None], 0), None


def sizes(counts: Tensor, rows: int) -> list[int]:
    """Return the counts on the host; where tensors have no content, those of rows that are spread evenly."""
    if counts.is_meta or isinstance(counts, FakeTensor):
        return [rows // len(counts) + (number < rows % len(counts)) for number in range(len(counts))]
    sizes: list[int] = counts.tolist()
    return sizes
