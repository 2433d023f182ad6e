"""Stand-ins for the other ranks while one rank is simulated: a group whose collectives do nothing, stage neighbors."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import stage

from shardlab.parallel.pipeline import TimedStage

PARTS: Any = stage
"""The metadata that stages exchange has no public names."""


@contextmanager
def fake_group(size: int, rank: int) -> Iterator[None]:
    """Process group of this size whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def all_tokens_here(top_k: int) -> Iterator[None]:
    """All tokens of all ranks choose experts of this rank: ``top_k`` of them, or all if it has fewer.

    Other ranks send as many rows as this one would.
    """

    def arrivals(received: Tensor, rows: int) -> list[int]:
        ranks, held = received.shape
        return [rows // top_k * min(top_k, held)] * ranks

    def sizes(counts: Tensor, rows: int) -> list[int]:
        chosen = min(top_k, len(counts))
        return [rows // chosen + (number < rows % chosen) for number in range(chosen)] + [0] * (len(counts) - chosen)

    patch = mock.patch
    with patch("shardlab.parallel.experts.arrivals", arrivals), patch("shardlab.models._experts.sizes", sizes):
        yield


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
