"""The transformers library's attention masks, where tensors have no values."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def no_packed_samples() -> Iterator[None]:
    """Positions are not looked at for packed samples: those of fake tensors would give a whole mask."""
    with mock.patch("transformers.masking_utils.find_packed_sequence_indices", return_value=None):
        yield
