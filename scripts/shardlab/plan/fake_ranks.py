"""Stand-ins for the other ranks while one rank is simulated: a group whose collectives do nothing, stage neighbors with
the shapes of the states that they pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import stage

from shardlab import models
from shardlab.models import matching
from shardlab.models._layers import Attention
from shardlab.models._sequence import first_part
from shardlab.parallel.pipeline import TimedStage
from shardlab.runtime.tasks import Task
from shardlab.settings.pipeline_schedules import boundaries
from shardlab.settings.types import Run

PARTS: Any = stage
"""The metadata that stages exchange has no public names."""
Seen = list[tuple[str, nn.Module, Any, Any]]
"""Calls of modules: how the plan splits it, the module, its inputs, its output."""


@contextmanager
def fake_group(size: int, rank: int) -> Iterator[None]:
    """Process group of this size whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def alone(states: list[tuple[Tensor, ...]]) -> type[TimedStage]:
    """Return a stage class that knows the metadata of its neighbors: the shapes of the state after each stage."""

    class Alone(TimedStage):
        def _recv_meta(self, src_stage: int) -> Any:
            if src_stage < self.stage_index:
                values = tuple(
                    torch.empty(value.shape, dtype=value.dtype, requires_grad=value.is_floating_point())
                    for value in states[src_stage]
                )
                return PARTS._StageForwardMeta(forward_metas=PARTS.extract_tensor_metas(values))
            return PARTS._StageBackwardMeta(backward_metas=PARTS._derive_grad_metas(self._stage_meta.outputs))

        def _send_meta(self, meta: Any, dst_stage: int) -> None:
            pass

        def _warmup_forward_vote(self, has_backward: bool, received_acc: Any = None) -> Any:
            return None

        def _warmup_backward_result(self, received_result: Any = None) -> Any:
            return SimpleNamespace(item=lambda: 0)  # no stage knows its shapes beforehand

    return Alone


def boundary_states(run: Run, task: Task, batch: dict[str, Tensor]) -> list[tuple[Tensor, ...]]:
    """Return what each pipeline stage passes to the next for a batch on the meta device, as one rank holds it."""
    model: Any = meta_model(run)
    seen: Seen = []
    for pattern, style in run.model.tensor.items():
        for module in matching(model, pattern):
            module.register_forward_hook(partial(record_call, seen, style))
    attend_to_shapes(model)
    state, keywords = task.inputs(batch)
    return [
        tuple(value[..., : value.shape[-1] // parts] for value in values)
        for values, parts in states_after_stages(run, model, state, keywords, seen)
    ]


def states_after_stages(
    run: Run, model: Any, state: Any, keywords: Any, seen: Seen
) -> list[tuple[tuple[Tensor, ...], int]]:
    """Return the state after each stage, and the number of parts that tensor parallelism splits it into there."""
    where = boundaries(run.model.segments, run.mesh.stages * run.options.pipeline.stages_per_rank)
    last = {stop for _, stop in where}
    states = []
    for number, values in enumerate(model.states(*state, **keywords), 1):
        if number in last:
            # After a column layer the state stays split over the tensor-parallel ranks.
            split = run.mesh.tensor_parallel and seen and seen[-1][0] == "column"
            states.append((values, run.mesh.tensor_parts if split else 1))
    return states


def meta_model(run: Run) -> nn.Module:
    """Return the model on the meta device, for a rank's part of the sequences."""
    model = models.build(run.model, run.task, getattr(torch, run.recipe.dtype)).to("meta")
    first_part(run).assign(model)
    return model


def attend_to_shapes(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Replace the model's attention by nothing; return a list to which each call appends its query and its key."""
    calls: list[tuple[Tensor, Tensor]] = []

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
        calls.append((query, key))
        return query

    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attend
    return calls


def record_call(seen: Seen, style: str, module: nn.Module, inputs: Any, output: Any) -> None:
    computed = style == "experts" and isinstance(output, tuple)  # with the number of their rows
    seen.append((style, module, inputs, output[0] if computed else output))
