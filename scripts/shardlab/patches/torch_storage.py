"""PyTorch's storages: their resizing seen, which passes no dispatch mode."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch


@contextmanager
def resizes(seen: Callable[[Any, int], None]) -> Iterator[None]:
    """Call ``seen`` with each storage that is resized inside, after it was, and its new size in bytes."""
    resize: Callable[[Any, int], Any] = torch.UntypedStorage.resize_

    def resized(storage: Any, size: int) -> Any:
        done = resize(storage, size)
        seen(storage, size)
        return done

    with mock.patch.object(torch.UntypedStorage, "resize_", resized):
        yield
