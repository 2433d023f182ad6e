"""Encoders from samples to the arrays that ``prepare`` stores, one file per task, with ``TEXT`` (whether it needs a
tokenizer), ``SAMPLE`` (a description of a sample), ``encode(data, samples, text)``, which raises ValueError for other
samples, and ``blank(options, rows)``: arrays of that many samples of the largest size, without content.
"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shardlab.errors import UserError
from shardlab.settings import pretrained, registry
from shardlab.settings.types import DataSet

Arrays = dict[str, NDArray[Any]]
Samples = list[tuple[Any, ...]]
SPECIAL = {"pad": 0, "start": 1, "end": 2}
"""Ids of <pad>, <bos> and <eos> in every tokenizer that is trained here."""


class Text(NamedTuple):
    """Encoder of text: tokenizer and special tokens."""

    tokenizer: Tokenizer
    special: dict[str, int]
    """Ids of ``pad``, ``start`` and ``end``."""


def encode(data: DataSet, splits: dict[str, Samples]) -> tuple[dict[str, Arrays], Text | None]:
    """Return the arrays of every split, and the text encoder: the model's tokenizer, or one trained on the train split.

    Raises:
        UserError: the task does not exist, the samples do not have the shape that the configuration promises the model,
            or the model has no tokenizer.json.
    """
    registry.require("encoder", data.task)
    encoder: Any = import_module(f"shardlab.data.encoders.{data.task}")
    text = _text(data, splits["train"]) if encoder.TEXT else None
    return {name: _encoded(encoder, data, name, samples, text) for name, samples in splits.items()}, text


def blank(data: DataSet, rows: int) -> Arrays:
    """Return arrays of a data set that is not prepared yet: samples of the largest size, without content."""
    registry.require("encoder", data.task)
    arrays: Arrays = import_module(f"shardlab.data.encoders.{data.task}").blank(data.options, rows)
    return arrays


def _encoded(encoder: Any, data: DataSet, split: str, samples: Samples, text: Text | None) -> Arrays:
    """Encode a split.

    Raises:
        UserError: the samples do not fit the task, or a key is missing that the encoder needs.
    """
    try:
        arrays: Arrays = encoder.encode(data, samples, text)
    except KeyError as error:
        raise UserError(
            f"data set {data.name}: task {data.task} needs the key {error.args[0]}; write it under `shape:` or `data:` "
            "of the size in the workload's file."
        ) from None
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError(
            f"data set {data.name}: the samples of split {split} do not fit task {data.task} "
            f"({encoder.SAMPLE}): {error}; fix scripts/shardlab/data/{data.reader}.py, or name another task."
        ) from error
    return arrays


def _text(data: DataSet, train: Samples) -> Text:
    if wrong := next((part for sample in train for part in sample if not isinstance(part, str)), None):
        raise UserError(
            f"data set {data.name}: task {data.task} takes texts, but a sample has a {type(wrong).__name__}; fix "
            f"scripts/shardlab/data/{data.reader}.py, or name another task."
        )
    if data.tokenizer:
        text = _read_tokenizer(Path(data.tokenizer))
        if (size := data.options.get("vocab_size")) and text.tokenizer.get_vocab_size() > size:
            raise UserError(
                f"{data.tokenizer}/tokenizer.json has {text.tokenizer.get_vocab_size()} entries, but the workload's "
                f"vocab_size is {size}; set it to at least that number."
            )
        return text
    return Text(_train_tokenizer(data, (part for sample in train for part in sample)), SPECIAL)


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
