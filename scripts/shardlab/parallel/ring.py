"""Ring attention (Liu et al., 2023, arXiv:2310.01889): keys and values travel around the ranks.

No rank ever holds those of more than two parts. Each block's result is merged by the log-sum-exp of its scores; the
backward pass uses the log-sum-exp of the whole row, which is what makes the blocks' gradients add up. Shapes: see
context.py.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.models._sequence import SequenceSplit, same_document

MASKED = -1e30
"""Score of a key that does not count."""
FUSED = "cpu"
"""Type of the devices whose fused kernel returns the log-sum-exp also in float64, with a bias and grouped queries."""
CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
KEYS, GRADIENTS = 0, 1
"""Tags of what travels at the same time."""


def ring(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    documents: Tensor | None = None,
    split: SequenceSplit,
    group: dist.ProcessGroup,
) -> Tensor:
    """Attend from this rank's positions to all keys, of which it holds one rank's at a time."""
    attended: Tensor = _Ring.apply(  # type: ignore[no-untyped-call]
        query, key, value, mask, documents, causal, split, group
    )
    return attended


class _Block(NamedTuple):
    """Positions of this rank and of another one, between which it computes attention."""

    rows: slice
    """Positions of this rank's part that attend to them."""
    keys: slice
    """Those of the other rank's positions that they attend to."""
    causal: bool
    """Rows attend to keys up to themselves, instead of to all of them."""


def _block(split: SequenceSplit, source: int, length: int, causal: bool) -> _Block:
    """Return the block with the keys of rank ``source``; a rank's part is a piece of the head and one of the tail."""
    every = slice(None)
    if not causal or source == split.rank:
        return _Block(every, every, causal)
    half = length // 2
    if source < split.rank:
        return _Block(every, slice(half), False)
    return _Block(slice(half, None), every, False)


class _Passing:
    """A tensor on its way to the next rank, while the previous rank's arrives."""

    def __init__(self, sent: Tensor, tag: int, split: SequenceSplit, group: dist.ProcessGroup) -> None:
        self.sent, self.arriving = sent.contiguous(), torch.empty_like(sent, memory_format=torch.contiguous_format)
        to, source = (split.rank + 1) % split.ranks, (split.rank - 1) % split.ranks
        self.works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self.sent, group=group, tag=tag, group_peer=to),
                dist.P2POp(dist.irecv, self.arriving, group=group, tag=tag, group_peer=source),
            ]
        )

    def arrived(self) -> Tensor:
        """Return the previous rank's tensor."""
        for work in self.works:
            work.wait()
        return self.arriving


def _around(memory: Tensor, split: SequenceSplit, group: dist.ProcessGroup) -> Iterator[tuple[int, Tensor]]:
    """Yield each rank's number and its ``memory``, this rank's first; meanwhile the next one is on its way."""
    for step in range(split.ranks):
        passing = _Passing(memory, KEYS, split, group) if step + 1 < split.ranks else None
        yield (split.rank - step) % split.ranks, memory
        if passing:
            memory = passing.arrived()


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        documents: Tensor | None,
        causal: bool,
        split: SequenceSplit,
        group: dist.ProcessGroup,
    ) -> Tensor:
        for source, memory in _around(torch.stack((key, value)), split, group):
            block = _block(split, source, key.shape[2], causal)
            keys, values = memory[:, :, :, block.keys].unbind(0)
            bias = _bias(mask, documents, split, source, block, query.dtype)
            found, weight = attend(query[:, :, block.rows], keys, values, bias, causal=block.causal)
            if source == split.rank:
                output, lse = found.to(weight.dtype), weight.contiguous()
            else:
                _merge(output[:, :, block.rows], lse[:, :, block.rows], found, weight)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, lse, mask, documents)
        ctx.causal, ctx.split, ctx.group = causal, split, group
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, output, lse, mask, documents = ctx.saved_tensors
        causal, split, group = ctx.causal, ctx.split, ctx.group
        memory = torch.stack((key, value))
        of_query = torch.zeros_like(query, dtype=lse.dtype)
        # The gradients of keys and values travel with them, and are complete when they are home again.
        of_memory, travelling = torch.zeros_like(memory, dtype=lse.dtype), None
        for source, passed in _around(memory, split, group):
            block = _block(split, source, key.shape[2], causal)
            keys, values = passed[:, :, :, block.keys].unbind(0)
            at = slice(None), slice(None), block.rows
            own = gradient[at], query[at], output[at], lse[at]
            bias = _bias(mask, documents, split, source, block, query.dtype)
            added = gradients(*own, keys, values, bias=bias, causal=block.causal)
            if travelling:
                of_memory = travelling.arrived()
            of_query[:, :, block.rows] += added[0]
            of_memory[0][:, :, block.keys] += added[1]
            of_memory[1][:, :, block.keys] += added[2]
            travelling = _Passing(of_memory, GRADIENTS, split, group)
        of_key, of_value = travelling.arrived().to(key.dtype).unbind(0) if travelling else of_memory.unbind(0)
        return of_query.to(query.dtype), of_key, of_value, None, None, None, None, None


def _merge(output: Tensor, lse: Tensor, found: Tensor, weight: Tensor) -> None:
    """Add a block's result to that of the blocks before it, in place."""
    total = torch.logaddexp(lse, weight)
    output.mul_((lse - total).exp().unsqueeze(-1)).add_(found * (weight - total).exp().unsqueeze(-1))
    lse.copy_(total)


def _bias(
    mask: Tensor | None,
    documents: Tensor | None,
    split: SequenceSplit,
    source: int,
    block: _Block,
    dtype: torch.dtype,
) -> Tensor | None:
    """Return what is added to the scores of a block: (batch, 1, 1 or rows, keys), 0 or a very negative number.

    Not -inf, whose differences are not numbers where a whole block is masked.
    """
    if documents is not None:
        parts = split.parts(documents, 1)
        counted = same_document(parts[split.rank][:, block.rows], parts[source][:, block.keys])
    elif mask is not None:
        counted = split.parts(mask, -1)[source]
    else:
        return None
    bias = torch.zeros(counted.shape, dtype=dtype, device=counted.device)
    return bias.masked_fill(~counted, MASKED)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Attend to some of the keys: return the output and the log-sum-exp of each row's scores, in float32 or float64.

    ``bias`` (batch, 1, 1 or length, memory length) is added to the scores; lse (batch, heads, length).
    """
    if query.device.type == FUSED:
        output, lse = CPU(query, key, value, 0.0, causal, attn_mask=bias)
        return output, lse
    key, value = _repeated(key, query), _repeated(value, query)
    scores = _scores(query, key, bias, causal)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp().to(value.dtype) @ value, lse


def gradients(
    gradient: Tensor,
    query: Tensor,
    output: Tensor,
    lse: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value; ``output`` and ``lse`` are those of whole rows, over all keys."""
    if query.device.type == FUSED:
        of_query, of_key, of_value = CPU_BACKWARD(gradient, query, key, value, output, lse, 0.0, causal, attn_mask=bias)
        return of_query, of_key, of_value
    keys, values = _repeated(key, query), _repeated(value, query)
    shares = (_scores(query, keys, bias, causal) - lse.unsqueeze(-1)).exp()
    of_shares = (gradient @ values.mT).to(shares.dtype)
    correction = (gradient * output).sum(-1, keepdim=True, dtype=shares.dtype)
    of_scores = (shares * (of_shares - correction) / math.sqrt(query.shape[-1])).to(query.dtype)
    of_key, of_value = of_scores.mT @ query, shares.to(gradient.dtype).mT @ gradient
    return of_scores @ keys, _summed(of_key, key), _summed(of_value, value)


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(), MASKED)
    return scores if bias is None else scores + bias


def _repeated(x: Tensor, query: Tensor) -> Tensor:
    """Return key or value heads, each repeated for all heads of its group."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)


def _summed(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of repeated heads as that of ``x``."""
    return gradient.unflatten(1, (x.shape[1], -1)).sum(2)
