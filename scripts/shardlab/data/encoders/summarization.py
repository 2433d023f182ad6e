"""Documents and summaries: ragged rows, stored flat with offsets.

document: prefix ... end, truncated to document_tokens; summary: start ... end, to summary_tokens. int32, offsets int64.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from shardlab.data import Samples
from shardlab.data.encoders import Arrays, parts_of, sized
from shardlab.data.text import Text, checked_text
from shardlab.settings.types import DataSet

TEXT = True
SAMPLE = "a document and its summary"
TOKEN = np.dtype(np.int32).itemsize
NAMES = {"document": "documents", "summary": "summaries"}


def encode(data: DataSet, samples: Samples, text: Text, counts: Counter[str]) -> Iterator[Arrays]:
    """Encode samples (document, summary)."""
    longest = {"document": data.options["document_tokens"], "summary": data.options["summary_tokens"]}
    prefix = data.options.get("prefix", "")
    start, end = text.token("start"), text.token("end")
    text.token("pad")  # batches are filled up with it
    texts = ((checked_text(document), checked_text(summary)) for document, summary in sized(samples, 2))
    for part in parts_of(texts, lambda sample: TOKEN * sum(map(len, sample))):
        arrays: Arrays = {}
        for name, column in zip(longest, zip(*part, strict=True), strict=True):
            tokens = text.ids(list(column), counts, prefix if name == "document" else "")
            counts[f"{NAMES[name]} truncated to {name}_tokens"] += sum(len(ids) >= longest[name] for ids in tokens)
            rows = [[*ids[: longest[name] - 1], end] for ids in tokens]
            if name == "summary":
                rows = [[start, *row] for row in rows]
            arrays[name] = np.concatenate([np.array(row, dtype=np.int32) for row in rows])
            arrays[f"{name}_offsets"] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        yield arrays


def blank(options: dict[str, Any], rows: int) -> Arrays:
    """Return such arrays without content, each row of maximum length."""
    arrays: Arrays = {}
    for name, length in (("document", options["document_tokens"]), ("summary", options["summary_tokens"] + 1)):
        arrays[name] = np.zeros(rows * length, np.int32)
        arrays[f"{name}_offsets"] = np.arange(0, rows * length + 1, length)
    return arrays
