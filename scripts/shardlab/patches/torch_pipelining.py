"""PyTorch's pipelining: V schedules that evaluate; a simulated stage that keeps what it sends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch.distributed.pipelining import PipelineStage, schedules


class Stage(PipelineStage):
    """A stage that evaluates, too, where the next one is on the same rank."""

    def get_local_bwd_output(self, mb_index: int) -> Any:
        """Gradients for the stage before, on this rank; none in evaluation, where PyTorch 2.13 would raise."""
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        """Gradients from the next stage, on this rank."""
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


@contextmanager
def sends_hold_their_tensors() -> Iterator[None]:
    """Keep what a schedule sends alive as long as the send's handle, in part to the end of the step: the handles of the
    fake group hold no tensors.
    """
    batch: Callable[..., list[Any]] = schedules._batch_p2p

    def kept(operations: list[Any], *words: Any, **options: Any) -> list[Any]:
        tensors = [operation.tensor for operation in operations]
        return [SimpleNamespace(wait=work.wait, tensors=tensors) for work in batch(operations, *words, **options)]

    with mock.patch.object(schedules, "_batch_p2p", kept):
        yield
