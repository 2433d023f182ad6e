"""Cross-entropy over whole or split vocabularies, also without materializing all logits at once."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100
"""Label of positions that are not targets (PyTorch's default)."""
TARGETS, SMOOTHING = "targets", "label_smoothing"
LOSS_ARGUMENTS = TARGETS, SMOOTHING
"""Keyword arguments of a model: the first makes it return losses, the second is of these."""


def cross_entropy(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, reduction: str = "sum") -> Tensor:
    """Return ``F.cross_entropy`` of logits (positions, classes) on targets (positions,), ``IGNORE`` if there is none.

    Within PyTorch's ``loss_parallel`` the classes may be split over ranks. It does not support label smoothing, which
    is added here: the logit of the target less the mean of all logits, as ``log_softmax`` subtracts the same from each.
    """
    placements = getattr(logits, "placements", ())
    if not label_smoothing or not any(placement.is_shard(1) for placement in placements):
        return F.cross_entropy(
            logits, targets, ignore_index=IGNORE, reduction=reduction, label_smoothing=label_smoothing
        )
    losses: Any = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction=reduction)
    return losses + label_smoothing * _above_mean(logits, targets, reduction).redistribute(placements=losses.placements)


def _above_mean(logits: Any, targets: Tensor, reduction: str) -> Any:
    """Return how far the logit of each target is above the mean, from this rank's part of the classes."""
    from torch.distributed.tensor import DTensor, Partial
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = logits.device_mesh, logits.placements
    part = logits.to_local()
    _, (_, first) = compute_local_shape_and_global_offset(logits.shape, mesh, placements)
    places = targets - first
    here = (places >= 0) & (places < part.shape[1])
    of_target = part.gather(1, places.where(here, 0)[:, None])[:, 0].where(here, 0.0)
    above = (of_target - part.sum(1) / logits.shape[1]).where(targets != IGNORE, 0.0)
    placements = [Partial() if placement.is_shard(1) else placement for placement in placements]
    return DTensor.from_local(above if reduction == "none" else above.sum(), mesh, placements, run_check=False)


def sample_losses(
    project: Callable[[Tensor], Tensor], x: Tensor, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of each sample, summed over its positions: (batch,).

    ``project`` maps (batch, positions, dim) to logits (batch, positions, vocabulary). ``x`` (batch, length, dim) is
    split along its length into the chunks of ``targets`` (batch, chunks, positions), -100 if there is no target. Logits
    exist for one chunk at a time, and are recomputed in the backward pass.
    """
    losses = []
    for part, wanted in zip(x.split(targets.shape[2], dim=1), targets.unbind(1), strict=False):
        words = part, wanted[:, : part.shape[1]], label_smoothing
        if torch.is_grad_enabled():
            from torch.utils.checkpoint import checkpoint

            losses.append(checkpoint(_losses, project, *words, use_reentrant=False, preserve_rng_state=False))
        else:
            losses.append(_losses(project, *words))
    return torch.stack(losses).sum(0)


def _losses(project: Callable[[Tensor], Tensor], x: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    logits = project(x).flatten(0, 1)
    if logits.dtype != torch.float64:
        logits = logits.float()
    losses = cross_entropy(logits, targets.flatten(), label_smoothing=label_smoothing, reduction="none")
    return losses.unflatten(0, targets.shape).sum(1)
