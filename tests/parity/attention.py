"""Attention over split sequences on a rank: output and gradients, written whole to compare them with one process."""

from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from shardlab.models import _layers
from shardlab.models._sequence import SequenceSplit
from shardlab.parallel import attention_block, context, ring

ALGORITHMS = {"gather": context.gathered, "ulysses": context.ulysses, "ring": ring.ring}
BATCH, HEADS, LENGTH, MEMORY, DIM = 2, 8, 16, 24, 4


def inputs(case):
    """Query, key, value, and the gradient of the output: whole, the same on every rank."""
    torch.manual_seed(0)
    memory = LENGTH if case["causal"] else MEMORY
    heads, kv_heads = HEADS, case["kv_heads"]
    sizes = [(heads, LENGTH), (kv_heads, memory), (kv_heads, memory), (heads, LENGTH)]
    return [torch.randn(BATCH, h, length, DIM, dtype=torch.float64) for h, length in sizes]


def mask(case):
    """Keys that count: in one sample only the first, so that the keys of most ranks are padding."""
    if not case["masked"] or case["causal"]:
        return None
    lengths = torch.tensor([2, MEMORY - 3])
    return (torch.arange(MEMORY) < lengths[:, None])[:, None, None]


def documents(case):
    """Documents of causal attention: in one sample some that end inside of a rank's part, in the other a single one."""
    if not (case["masked"] and case["causal"]):
        return None
    return torch.tensor([[1] * 5 + [2] + [3] * 7 + [4] * 3, [1] * LENGTH])


def expected(case):
    """Output and gradients in one process."""
    *parts, gradient = inputs(case)
    options = {"mask": mask(case), "causal": case["causal"]}
    if (whole := documents(case)) is not None:
        before = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        options = {"mask": (before & (whole[:, :, None] == whole[:, None]))[:, None]}
    return _passed(partial(_layers.attend, **options), parts, gradient)


def of_rank(case):
    """Compute this rank's part, and write the whole ones on rank 0."""
    split = SequenceSplit(dist.get_world_size(), dist.get_rank(), case["head_tail"])
    *parts, gradient = (split.part(x, 2) for x in inputs(case))
    attend = partial(ALGORITHMS[case["attention"]], split=split, group=dist.group.WORLD)
    fused = "none" if case["math"] else attention_block.FUSED  # none: what a GPU computes
    with mock.patch.object(attention_block, "FUSED", fused):
        options = {"mask": mask(case), "causal": case["causal"], "documents": documents(case)}
        found = _passed(partial(attend, **options), parts, gradient)
    whole = {}
    for name, value in found.items():
        each = [torch.empty_like(value) for _ in range(split.ranks)]
        dist.all_gather(each, value.contiguous())
        whole[name] = split.in_order(torch.cat(each, 2), 2).contiguous()
    if split.rank == 0:
        save_file(whole, Path(case["output"]) / "attention.safetensors")


def _passed(attend, parts, gradient):
    parts = [x.clone().requires_grad_() for x in parts]
    output = attend(*parts)
    output.backward(gradient)
    return dict(zip(("output", "query", "key", "value"), (output.detach(), *(x.grad for x in parts)), strict=True))
