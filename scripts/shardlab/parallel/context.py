"""Context parallelism: ranks read the same samples, each a part of every sequence, and attend to the other parts.

Keys and values gathered, as for Llama 3 (Grattafiori et al., 2024, arXiv:2407.21783, section 3.3.2); heads exchanged
for positions (DeepSpeed-Ulysses: Jacobs et al., 2023, arXiv:2309.14509); or keys and values passed around a ring (see
ring.py). Shapes in this file: query (batch, heads, length, head_dim); key, value (batch, kv_heads, memory length,
head_dim), with the lengths of a rank's parts; mask (batch, 1, 1, whole memory length) with True for keys that count;
documents (batch, whole length): of causal attention, each position attends within its own.
"""

import logging
import math
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed._functional_collectives import all_reduce, all_to_all_single_autograd

from shardlab.errors import UserError
from shardlab.models._experts import Router
from shardlab.models._layers import Attention, attend
from shardlab.models._sequence import SequenceSplit, same_document
from shardlab.parallel.ring import ring
from shardlab.runtime.tasks import Task
from shardlab.settings.types import Run

log = logging.getLogger(__name__)

Group = dist.ProcessGroup
# PyTorch before 2.13 has it under the second name.
all_gather_single_autograd = (
    getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
)


def gathered(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    documents: Tensor | None = None,
    split: SequenceSplit,
    group: Group,
) -> Tensor:
    """Attend from this rank's positions to all keys, gathered; their gradients are reduced and scattered again."""
    parts = all_gather_single_autograd(torch.stack((key, value)).movedim(3, 0).contiguous(), 0, group)
    keys, values = split.in_order(parts, 0).movedim(0, 3).unbind(0)
    if not causal:
        return attend(query, keys, values, mask)
    length = keys.shape[2] // split.count
    outputs = []
    for number, piece in zip(split.pieces, query.chunk(len(split.pieces), 2), strict=True):
        end = (number + 1) * length  # later keys are masked: leave them out
        before = torch.ones(length, end, dtype=torch.bool, device=query.device).tril(end - length)
        if documents is not None:
            before = before & same_document(documents[:, end - length : end], documents[:, :end])
        outputs.append(attend(piece, keys[:, :, :end], values[:, :, :end], before))
    return torch.cat(outputs, 2)


def ulysses(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    documents: Tensor | None = None,
    split: SequenceSplit,
    group: Group,
) -> Tensor:
    """Attend with some of the heads over whole sequences, between two all-to-all exchanges.

    The number of ranks divides that of the heads; fewer key heads than ranks are repeated.
    """
    repeats = split.ranks // math.gcd(split.ranks, key.shape[1])
    memory = torch.stack((key, value)).repeat_interleave(repeats, 2)
    keys, values = to_heads(memory, split, group).unbind(0)
    mixed = attend(to_heads(query, split, group), keys, values, mask, causal=causal, documents=documents)
    return to_positions(mixed, split, group)


def to_heads(x: Tensor, split: SequenceSplit, group: Group) -> Tensor:
    """Exchange (..., heads, part, head_dim) for (..., heads / ranks, length, head_dim)."""
    sent = x.unflatten(-3, (split.ranks, -1)).movedim(-4, 0)
    parts = all_to_all_single_autograd(sent.contiguous(), None, None, group)
    return split.in_order(torch.cat(parts.unbind(0), -2), x.dim() - 2)


def to_positions(x: Tensor, split: SequenceSplit, group: Group) -> Tensor:
    """Exchange (..., heads / ranks, length, head_dim) for (..., heads, part, head_dim)."""
    heads = all_to_all_single_autograd(torch.stack(split.parts(x, x.dim() - 2)), None, None, group)
    return torch.cat(heads.unbind(0), -3)


ALGORITHMS = {"gather": gathered, "ulysses": ulysses, "ring": ring}
NEIGHBORS = (nn.RNNBase, nn.Conv1d, nn.AvgPool1d, nn.MaxPool1d)
"""Layers with a state or a window over positions, which need those of other ranks."""


def check(run: Run, task: Task, model: nn.Module) -> None:
    """Check that sequences are split, and that all attention knows of it.

    Raises:
        UserError: the task names no sequences, or the model does not attend through models/_layers.py, does not split
            what the task does not, or has layers other than attention that look at other positions.
    """
    if not (task.sequences or task.at_first_position):
        raise UserError(f"context_sizes: task {run.task} does not name its `sequences`; name them, or remove the key.")
    own = not run.model.folder  # of the library: see library_context
    if own and not any(isinstance(module, Attention) for module in model.modules()):
        raise UserError(
            f"context_sizes: model {run.model.name} does not attend through models/_layers.py; use its Attention, or "
            "remove the key."
        )
    if own and not task.sequences and not any(hasattr(module, "sequence") for module in model.modules()):
        raise UserError(
            f"context_sizes: model {run.model.name} does not split the positions that it makes of a sample; give it a "
            "`sequence` as in models/vit.py, or remove the key."
        )
    for name, module in model.named_modules():
        if isinstance(module, NEIGHBORS):
            raise UserError(
                f"{name} of model {run.model.name} is a {type(module).__name__}, whose output at a position depends on "
                "positions that other ranks have, so its sequences cannot be split; leave out cp."
            )


def apply(model: nn.Module, name: str, split: SequenceSplit, group: Group) -> None:
    """Replace the attention of a model, or of a part of one, and give it the positions that this rank has."""
    split.assign(model)
    attending = 0
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = partial(ALGORITHMS[name], split=split, group=group)
            attending += 1
        if isinstance(module, Router):
            module.over_sequence = partial(all_reduce, reduceOp="sum", group=group)  # type: ignore[method-assign]
    log.info("Applied context parallelism (%s) to %d attention modules, mesh cp=%d", name, attending, split.ranks)
