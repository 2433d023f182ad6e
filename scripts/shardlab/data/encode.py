"""Samples to arrays: what ``prepare`` stores for each task."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shardlab.data import BOS, EOS
from shardlab.errors import UserError
from shardlab.settings import DataSet

Arrays = dict[str, NDArray[Any]]
Samples = list[tuple[Any, ...]]


def encode(data: DataSet, splits: dict[str, Samples]) -> tuple[dict[str, Arrays], Tokenizer | None]:
    """Arrays of every split, and the tokenizer (trained on the train split) of text tasks.

    Raises:
        UserError: the samples do not have the shape that the configuration promises the model.
    """
    if data.task in ("regression", "classification"):
        plain = _pairs if data.task == "regression" else _images
        return {name: plain(data, samples) for name, samples in splits.items()}, None
    text: Callable[[DataSet, Samples, Tokenizer], Arrays]
    text = _windows if data.task == "language_modelling" else _summaries
    tokenizer = _train_tokenizer(data, (part for sample in splits["train"] for part in sample))
    arrays = {name: text(data, samples, tokenizer) for name, samples in splits.items()}
    return arrays, tokenizer


def _pairs(data: DataSet, samples: Samples) -> Arrays:
    x, y = (np.stack(column).astype(np.float64) for column in zip(*samples, strict=True))
    return {"x": x, "y": y}


def _images(data: DataSet, samples: Samples) -> Arrays:
    channels, size = data.options["channels"], data.options["image_size"]
    images = np.stack([_image(image, channels, size) for image, _ in samples])
    labels = np.array([label for _, label in samples], dtype=np.int64)
    if labels.max() >= data.options["classes"]:
        raise UserError(
            f"data set {data.name}: a label is {labels.max()}, but its shape promises "
            f"{data.options['classes']} classes; set shape.classes in the workload's file."
        )
    return {"images": images, "labels": labels}


def _image(image: Any, channels: int, size: int) -> NDArray[np.uint8]:
    """uint8 (channels, size, size) of a PIL image or of such an array."""
    if not isinstance(image, np.ndarray):
        image = np.asarray(image.convert("L" if channels == 1 else "RGB").resize((size, size)), dtype=np.uint8)
        image = image[None] if channels == 1 else image.transpose(2, 0, 1)
    return image


def _train_tokenizer(data: DataSet, texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE (Sennrich et al., 2016, arXiv:1508.07909) with at most ``vocab_size`` entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=data.options["vocab_size"],
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _windows(data: DataSet, samples: Samples, tokenizer: Tokenizer) -> Arrays:
    """tokens (windows, sequence_length + 1): each window begins with the last token of the one before."""
    length = data.options["sequence_length"]
    stream: list[int] = []
    for encoding in tokenizer.encode_batch([text for (text,) in samples]):
        stream.extend(encoding.ids)
        stream.append(EOS)
    windows = (len(stream) - 1) // length
    if windows < 1:
        raise UserError(f"data set {data.name}: a split has fewer than sequence_length {length} tokens; shorten it.")
    starts = np.arange(windows)[:, None] * length
    return {"tokens": np.array(stream, dtype=np.int32)[starts + np.arange(length + 1)]}


def _summaries(data: DataSet, samples: Samples, tokenizer: Tokenizer) -> Arrays:
    """Ragged rows, flat with offsets: document (to document_tokens), summary (<bos> ... <eos>)."""
    longest = {"document": data.options["document_tokens"], "summary": data.options["summary_tokens"]}
    arrays: Arrays = {}
    for column, name in enumerate(("document", "summary")):
        encodings = tokenizer.encode_batch([sample[column] for sample in samples])
        if name == "document":
            rows = [[*encoding.ids[: longest[name] - 1], EOS] for encoding in encodings]
        else:
            rows = [[BOS, *encoding.ids[: longest[name] - 1], EOS] for encoding in encodings]
        arrays[name] = np.concatenate([np.array(row, dtype=np.int32) for row in rows])
        arrays[f"{name}_offsets"] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return arrays
