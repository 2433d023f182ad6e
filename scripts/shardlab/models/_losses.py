"""Loss of models whose last layer projects onto a vocabulary, without materializing all logits at once."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

TARGETS = "targets"
"""Keyword argument that makes a model return losses."""


def sample_losses(project: Callable[[Tensor], Tensor], x: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, summed over its positions: (batch,).

    ``project`` maps (batch, positions, dim) to logits (batch, positions, vocabulary). ``x`` (batch, length, dim) is
    split along its length into the chunks of ``targets`` (batch, chunks, positions), -100 if there is no target. Logits
    exist for one chunk at a time, and are recomputed in the backward pass.
    """
    losses = []
    for part, wanted in zip(x.split(targets.shape[2], dim=1), targets.unbind(1), strict=False):
        words = part, wanted[:, : part.shape[1]]
        if torch.is_grad_enabled():
            from torch.utils.checkpoint import checkpoint

            losses.append(checkpoint(_losses, project, *words, use_reentrant=False, preserve_rng_state=False))
        else:
            losses.append(_losses(project, *words))
    return torch.stack(losses).sum(0)


def _losses(project: Callable[[Tensor], Tensor], x: Tensor, targets: Tensor) -> Tensor:
    logits = project(x).flatten(0, 1)
    if logits.dtype != torch.float64:
        logits = logits.float()
    return F.cross_entropy(logits, targets.flatten(), reduction="none").unflatten(0, targets.shape).sum(1)
