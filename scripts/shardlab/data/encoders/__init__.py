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
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shardlab.data.samples import Located, Samples
from shardlab.errors import UserError
from shardlab.settings import pretrained, registry
from shardlab.settings.types import DataSet

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")
SPECIAL = {"pad": 0, "start": 1, "end": 2}
"""Ids of <pad>, <bos> and <eos> in every tokenizer that is trained here."""
PART = 2**22
"""Bytes of a part's arrays, about."""
TRAINED_ON = 6_000_000
"""Bytes of text, the first of the train split, that a tokenizer is trained on: of text in which no word comes back, the
trainer keeps 125 bytes per byte.
"""


class Text(NamedTuple):
    """Encoder of text: tokenizer and special tokens."""

    tokenizer: Tokenizer
    special: dict[str, int]
    """Ids of ``pad``, ``start`` and ``end``."""

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of each text, without special tokens around them."""
        return [each.ids for each in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


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


def checked_text(value: Any) -> str:
    """Return a text of a sample.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError(f"it has a {type(value).__name__} where a text should be")
    return value


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
        text = _read_tokenizer(Path(data.tokenizer))
        if (size := data.options.get("vocab_size")) and text.tokenizer.get_vocab_size() > size:
            raise UserError(
                f"{data.tokenizer}/tokenizer.json has {text.tokenizer.get_vocab_size()} entries, but the workload's "
                f"vocab_size is {size}; set it to at least that number."
            )
        return text
    with _placed(train, expected):
        texts = (checked_text(part) for sample in train for part in sample)
        return Text(_train_tokenizer(data, _first(texts, TRAINED_ON)), SPECIAL)


def _read_tokenizer(folder: Path) -> Text:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise UserError(
            f"{path} is missing; create it where transformers is installed: "
            f"AutoTokenizer.from_pretrained(MODEL).save_pretrained('{folder}')."
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no exception type
        raise UserError(f"{path} is not a tokenizer of the tokenizers library ({error}); recreate it.") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Text(tokenizer, pretrained.special_tokens(folder))


def _first(texts: Iterable[str], size: int) -> Iterator[str]:
    """Yield texts of ``size`` bytes together, the last one cut."""
    for text in texts:
        content = text.encode()
        yield text if len(content) <= size else content[:size].decode(errors="ignore")
        size -= len(content)
        if size <= 0:
            return


def _train_tokenizer(data: DataSet, texts: Iterable[str]) -> Tokenizer:
    """Train byte-level BPE (Sennrich et al., 2016, arXiv:1508.07909) with at most ``vocab_size`` entries."""
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
