"""Text: tokens (windows, sequence_length + 1) int32; each window begins with the last token of the previous one."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shardlab.data import Samples
from shardlab.data.encoders import Arrays, parts_of, sized
from shardlab.data.text import Text, checked_text
from shardlab.errors import UserError
from shardlab.settings.types import DataSet

TEXT = True
SAMPLE = "a text"
TOKEN = np.dtype(np.int32).itemsize


def encode(data: DataSet, samples: Samples, text: Text, counts: Counter[str]) -> Iterator[Arrays]:
    """Encode samples (text,), each followed by the end token, in windows of one long text.

    Raises:
        UserError: a split is shorter than one window.
    """
    length, end = data.options["sequence_length"], text.token("end")
    texts = (checked_text(sample) for (sample,) in sized(samples, 1))
    left = np.empty(0, np.int32)
    whole = 0  # windows
    for part in parts_of(texts, lambda text: TOKEN * len(text)):
        stream = np.concatenate([left, *(np.array([*ids, end], np.int32) for ids in text.ids(part, counts))])
        if windows := (len(stream) - 1) // length:
            yield {"tokens": sliding_window_view(stream, length + 1)[::length]}
        left = stream[windows * length :].copy()
        whole += windows
    if not whole:
        raise UserError(f"the split has fewer than sequence_length {length} tokens; reduce sequence_length.")
    counts["tokens after the last whole window dropped"] += len(left) - 1


def blank(options: dict[str, Any], rows: int) -> Arrays:
    """Return such arrays without content."""
    return {"tokens": np.zeros((rows, options["sequence_length"] + 1), np.int32)}
