"""PyTorch's DTensor: shapes found without being counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def shapes_uncounted() -> Iterator[None]:
    """DTensor finds the shape of an operator's result by that operator on fake tensors of whole sizes.

    Under our modes what it makes there would be counted as memory of the rank (PyTorch issue 183970).
    """
    find = ShardingPropagator._propagate_tensor_meta_non_cached

    def found(propagator: ShardingPropagator, schema: Any) -> Any:
        with _disable_current_modes():
            return find(propagator, schema)

    with mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", found):
        yield
