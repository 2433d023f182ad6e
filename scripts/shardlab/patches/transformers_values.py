"""The transformers library's models where tensors have no values."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock


@contextmanager
def without_values(*, packed: bool = False) -> Iterator[None]:
    """The library's models run where tensors have no values.

    Positions are not looked at for samples that are ``packed``, unless they are: those of fake tensors would give a
    whole mask. Experts compute in groups, in any dtype: one by one, they look for those that have tokens; and of
    grouped products PyTorch knows the shapes in bfloat16 alone, the library of its own in all.
    """
    from transformers.integrations import moe

    def grouped(*_: Any) -> Any:
        return moe.grouped_mm_experts_forward

    with ExitStack() as stack:
        if not packed:
            name = "transformers.masking_utils.find_packed_sequence_indices"
            stack.enter_context(mock.patch(name, return_value=None))
        stack.enter_context(mock.patch.object(moe.ExpertsInterface, "get_interface", grouped))
        stack.enter_context(mock.patch.object(moe, "_can_use_grouped_mm", return_value=False))
        yield
