"""PyTorch's pipelining: a simulated stage that keeps what it sends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch.distributed.pipelining import schedules


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
