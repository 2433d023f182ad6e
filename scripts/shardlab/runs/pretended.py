"""What stands in for other ranks while one is simulated: a group whose collectives do nothing, neighbors of a stage."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

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


@contextmanager
def shapes_by_themselves() -> Iterator[None]:
    """DTensor finds the shape of an operator's result by that operator on fake tensors of whole sizes.

    Under our modes what it makes there would be counted as memory of the rank.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.utils._python_dispatch import _disable_current_modes

    find = ShardingPropagator._propagate_tensor_meta_non_cached

    def found(propagator: ShardingPropagator, schema: Any) -> Any:
        with _disable_current_modes():
            return find(propagator, schema)

    with mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", found):
        yield


def keep_what_is_sent(batch: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """What a schedule sends stays as long as it keeps the sending, some of it to the end of the step: the fake group's
    sendings hold nothing.
    """

    def kept(operations: list[Any], *words: Any, **options: Any) -> list[Any]:
        tensors = [operation.tensor for operation in operations]
        return [SimpleNamespace(wait=work.wait, tensors=tensors) for work in batch(operations, *words, **options)]

    return kept


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
