"""Text: tokens (windows, sequence_length + 1) int32; each window begins with the last token of the previous one."""

from typing import Any

import numpy as np

from shardlab.data.encoders import Arrays, Samples, Text
from shardlab.errors import UserError
from shardlab.settings.types import DataSet

TEXT = True
SAMPLE = "a text"


def encode(data: DataSet, samples: Samples, text: Text) -> Arrays:
    """Encode samples (text,).

    Raises:
        UserError: a split is shorter than one window.
    """
    length = data.options["sequence_length"]
    stream: list[int] = []
    for encoding in text.tokenizer.encode_batch([sample for (sample,) in samples], add_special_tokens=False):
        stream.extend(encoding.ids)
        stream.append(text.special["end"])
    windows = (len(stream) - 1) // length
    if windows < 1:
        raise UserError(
            f"data set {data.name}: a split has fewer than sequence_length {length} tokens; reduce sequence_length."
        )
    starts = np.arange(windows)[:, None] * length
    return {"tokens": np.array(stream, dtype=np.int32)[starts + np.arange(length + 1)]}


def blank(options: dict[str, Any], rows: int) -> Arrays:
    """Return such arrays without content."""
    return {"tokens": np.zeros((rows, options["sequence_length"] + 1), np.int32)}
