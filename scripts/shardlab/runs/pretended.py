"""What stands in for other ranks while one is simulated: a group whose collectives do nothing, neighbors of a stage."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import stage

from shardlab.strategies.pipeline import TimedStage

PARTS: Any = stage
"""What a stage tells the others has no public names."""


@contextmanager
def fake_group(size: int, rank: int) -> Iterator[None]:
    """A process group of that size whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def alone(states: list[tuple[Tensor, ...]]) -> type[TimedStage]:
    """A stage that knows what the others would tell it: the state behind each of them, by shape."""

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
