"""Attention to some of the keys, with the log-sum-exp of the scores, from which blocks are merged (see ring.py).

Shapes: query, output (batch, heads, length, head_dim); key, value (batch, kv_heads, memory length, head_dim); bias
(batch, 1, 1 or length, memory length), added to the scores; lse (batch, heads, length).
"""

import math

import torch
from torch import Tensor

MASKED = -1e30
"""Score of a key that does not count."""
FUSED = "cpu"
"""Type of the devices whose fused kernel returns the log-sum-exp also in float64, with a bias and grouped queries."""
CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of each row's scores, in float32 or float64."""
    if query.device.type == FUSED:
        output, lse = CPU(query, key, value, 0.0, causal, attn_mask=bias)
        return output, lse
    key, value = _repeated(key, query), _repeated(value, query)
    scores = _scores(query, key, bias, causal)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp().to(value.dtype) @ value, lse


def backward(
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
