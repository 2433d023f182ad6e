"""Encoders from samples to the arrays that ``prepare`` stores, one file per task, with

- ``TEXT``: whether it needs a tokenizer,
- ``SAMPLE``: a description of a sample,
- ``encode(data, samples, text, counts)``, which yields the arrays of consecutive parts of a split, of some MB each: an
  array has one row per sample, or is flat, and another one called NAME_offsets has where its rows begin and end, from 0
  in each part. What it drops, cuts or changes in samples, it counts in ``counts``. It raises ValueError for the sample
  that it took last, or UserError if the sentence also says what would help; the caller adds data set, split and row.
- ``blank(options, rows)``: arrays of that many samples of the largest size, without content.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from shardlab.data import Located, Samples
from shardlab.data.text import Text, checked_text, model_encoder, trained
from shardlab.errors import UserError
from shardlab.settings import registry
from shardlab.settings.types import DataSet

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")
PART = 2**22
"""Bytes of a part's arrays, about."""


class Encoded(NamedTuple):
    """A data set on its way to ``store.write``; samples are read when the parts are."""

    splits: dict[str, Iterator[Arrays]]
    text: Text | None
    counts: dict[str, Counter[str]]
    """Split: what was dropped, cut or changed in its samples, and how often; complete after its last part."""


def encode(data: DataSet, splits: dict[str, Samples]) -> Encoded:
    """Encode every split; the text encoder is the model's tokenizer, or one trained on the train split.

    Raises:
        UserError: the task does not exist, the samples do not have the shape that the configuration promises the model,
            or the model has no tokenizer.json.
    """
    registry.require("encoder", data.task)
    encoder: Any = import_module(f"shardlab.data.encoders.{data.task}")
    located = {name: Located(data, name, samples) for name, samples in splits.items()}
    text = _text(data, located["train"], encoder.SAMPLE) if encoder.TEXT else None
    counts = {name: Counter[str]() for name in splits}
    parts = {name: _encoded(encoder, samples, text, counts[name]) for name, samples in located.items()}
    return Encoded(parts, text, counts)


def blank(data: DataSet, rows: int) -> Arrays:
    """Return arrays of a data set that is not prepared yet: samples of the largest size, without content."""
    registry.require("encoder", data.task)
    arrays: Arrays = import_module(f"shardlab.data.encoders.{data.task}").blank(data.options, rows)
    return arrays


def parts_of(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Collect items in parts of about ``PART`` bytes, where an item has ``size(item)`` bytes."""
    part: list[T] = []
    total = 0
    for item in items:
        part.append(item)
        total += size(item)
        if total >= PART:
            yield part
            part, total = [], 0
    if part:
        yield part


def sized(samples: Samples, *counts: int) -> Iterator[tuple[Any, ...]]:
    """Yield the samples.

    Raises:
        ValueError: one has another number of values than ``counts``.
    """
    for sample in samples:
        if len(sample) not in counts:
            raise ValueError(f"it has {len(sample)} value{'s' * (len(sample) != 1)}")
        yield sample


@contextmanager
def _placed(samples: Located, expected: str) -> Iterator[None]:
    """Make a UserError with the place of the sample that was read last.

    Raises:
        UserError: a sample does not fit the task, or a key is missing that the encoder needs.
    """
    data = samples.data
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError, UserError) as error:
        if samples.failure is error:
            raise
        if isinstance(error, KeyError):
            raise UserError(
                f"data set {data.name}: task {data.task} needs the key {error.args[0]}; write it under `shape:` or "
                "`data:` of the size in the workload's file."
            ) from None
        if isinstance(error, UserError):
            raise UserError(f"{samples.place}: {error}") from error
        fix = "name other columns under `hub:`" if data.hub else f"fix scripts/shardlab/data/{data.reader}.py"
        raise UserError(
            f"{samples.place}: {error}; a sample of task {data.task} is {expected}: {fix}, or name another task."
        ) from error


def _encoded(encoder: Any, samples: Located, text: Text | None, counts: Counter[str]) -> Iterator[Arrays]:
    with _placed(samples, encoder.SAMPLE):
        yield from encoder.encode(samples.data, samples, text, counts)


def _text(data: DataSet, train: Located, expected: str) -> Text:
    if data.tokenizer:
        return model_encoder(data)
    with _placed(train, expected):
        return trained(data, (checked_text(part) for sample in train for part in sample))
