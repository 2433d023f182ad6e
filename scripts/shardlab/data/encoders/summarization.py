"""Documents and summaries: ragged rows, stored flat with offsets.

document: prefix ... end, truncated to document_tokens; summary: start ... end, to summary_tokens. int32, offsets int64.
"""

from typing import Any

import numpy as np

from shardlab.data.encoders import Arrays, Samples, Text
from shardlab.settings.types import DataSet

TEXT = True
SAMPLE = "a document and its summary"


def encode(data: DataSet, samples: Samples, text: Text) -> Arrays:
    """Encode samples (document, summary)."""
    longest = {"document": data.options["document_tokens"], "summary": data.options["summary_tokens"]}
    prefix = {"document": data.options.get("prefix", ""), "summary": ""}
    start, end = text.special["start"], text.special["end"]
    arrays: Arrays = {}
    for column, name in enumerate(("document", "summary")):
        texts = [prefix[name] + sample[column] for sample in samples]
        encodings = text.tokenizer.encode_batch(texts, add_special_tokens=False)
        rows = [[*encoding.ids[: longest[name] - 1], end] for encoding in encodings]
        if name == "summary":
            rows = [[start, *row] for row in rows]
        arrays[name] = np.concatenate([np.array(row, dtype=np.int32) for row in rows])
        arrays[f"{name}_offsets"] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return arrays


def blank(options: dict[str, Any], rows: int) -> Arrays:
    """Return such arrays without content, each row of maximum length."""
    arrays: Arrays = {}
    for name, length in (("document", options["document_tokens"]), ("summary", options["summary_tokens"] + 1)):
        arrays[name] = np.zeros(rows * length, np.int32)
        arrays[f"{name}_offsets"] = np.arange(0, rows * length + 1, length)
    return arrays
