"""Samples to arrays: what ``prepare`` stores for each task."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shardlab.errors import UserError
from shardlab.settings import pretrained
from shardlab.settings.types import DataSet

Arrays = dict[str, NDArray[Any]]
Samples = list[tuple[Any, ...]]
SPECIAL = {"pad": 0, "start": 1, "end": 2}
"""Ids of <pad>, <bos> and <eos> in every tokenizer that is trained here."""


class Text(NamedTuple):
    """What text is encoded with."""

    tokenizer: Tokenizer
    special: dict[str, int]
    """Ids of ``pad``, ``start`` and ``end``."""


def encode(data: DataSet, splits: dict[str, Samples]) -> tuple[dict[str, Arrays], Text | None]:
    """Arrays of every split, and what text was encoded with: the model's tokenizer, or one trained on the train split.

    Raises:
        UserError: the samples do not have the shape that the configuration promises the model, or the model has no
            tokenizer.json.
    """
    if data.task in ("regression", "classification"):
        plain = _pairs if data.task == "regression" else _images
        return {name: plain(data, samples) for name, samples in splits.items()}, None
    arrays: Callable[[DataSet, Samples, Text], Arrays]
    arrays = _windows if data.task == "language_modelling" else _summaries
    if data.tokenizer:
        text = _read_tokenizer(Path(data.tokenizer))
    else:
        text = Text(_train_tokenizer(data, (part for sample in splits["train"] for part in sample)), SPECIAL)
    return {name: arrays(data, samples, text) for name, samples in splits.items()}, text


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


def _read_tokenizer(folder: Path) -> Text:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise UserError(
            f"{path} is missing; make it where transformers is: "
            f"AutoTokenizer.from_pretrained(MODEL).save_pretrained('{folder}')."
        )
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Text(tokenizer, pretrained.special_tokens(folder))


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


def _windows(data: DataSet, samples: Samples, text: Text) -> Arrays:
    """tokens (windows, sequence_length + 1): each window begins with the last token of the one before."""
    length = data.options["sequence_length"]
    stream: list[int] = []
    for encoding in text.tokenizer.encode_batch([sample for (sample,) in samples], add_special_tokens=False):
        stream.extend(encoding.ids)
        stream.append(text.special["end"])
    windows = (len(stream) - 1) // length
    if windows < 1:
        raise UserError(f"data set {data.name}: a split has fewer than sequence_length {length} tokens; shorten it.")
    starts = np.arange(windows)[:, None] * length
    return {"tokens": np.array(stream, dtype=np.int32)[starts + np.arange(length + 1)]}


def _summaries(data: DataSet, samples: Samples, text: Text) -> Arrays:
    """Ragged rows, flat with offsets: document (prefix ... end, to document_tokens), summary (start ... end)."""
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
