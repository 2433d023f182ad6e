"""The transformers library's models where tensors have no values; what it does not say of a file of weights."""

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


@contextmanager
def unexpected_weights(found: set[str]) -> Iterator[None]:
    """Add the names of all weights of a file that its model does not have, also those that the library's report leaves
    out.
    """
    from transformers import PreTrainedModel

    adjust = PreTrainedModel._adjust_missing_and_unexpected_keys

    def noted(model: Any, info: Any) -> None:
        found.update(info.unexpected_keys)
        adjust(model, info)

    with mock.patch.object(PreTrainedModel, "_adjust_missing_and_unexpected_keys", noted):
        yield
