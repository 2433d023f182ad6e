"""Samples to arrays, what ``prepare`` stores: one file per task, with ``TEXT`` (whether it needs a tokenizer),
``SAMPLE`` (what a sample is, in words), ``encode(data, samples, text)``, which raises ValueError for others, and
``blank(options, rows)``: arrays of as many samples without content, each as large as they can be.
"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shardlab.errors import UserError
from shardlab.settings import catalogue, pretrained
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
        UserError: there is no such task, the samples do not have the shape that the configuration promises the model,
            or the model has no tokenizer.json.
    """
    catalogue.require("encoder", data.task)
    encoder: Any = import_module(f"shardlab.data.encoders.{data.task}")
    text = _text(data, splits["train"]) if encoder.TEXT else None
    return {name: _encoded(encoder, data, name, samples, text) for name, samples in splits.items()}, text


def blank(data: DataSet, rows: int) -> Arrays:
    """Arrays of a data set that is not prepared yet: as many samples as large as they can be, without content."""
    catalogue.require("encoder", data.task)
    arrays: Arrays = import_module(f"shardlab.data.encoders.{data.task}").blank(data.options, rows)
    return arrays


def _encoded(encoder: Any, data: DataSet, split: str, samples: Samples, text: Text | None) -> Arrays:
    """Arrays of a split.

    Raises:
        UserError: the samples are not of the task's kind, or a key is missing that the encoder needs.
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
            f"data set {data.name}: the samples of split {split} are not what task {data.task} takes "
            f"({encoder.SAMPLE}): {error}; mend scripts/shardlab/data/{data.reader}.py, or name another task."
        ) from error
    return arrays


def _text(data: DataSet, train: Samples) -> Text:
    if wrong := next((part for sample in train for part in sample if not isinstance(part, str)), None):
        raise UserError(
            f"data set {data.name}: task {data.task} takes texts, and a sample has a {type(wrong).__name__}; mend "
            f"scripts/shardlab/data/{data.reader}.py, or name another task."
        )
    if data.tokenizer:
        text = _read_tokenizer(Path(data.tokenizer))
        if (size := data.options.get("vocab_size")) and text.tokenizer.get_vocab_size() > size:
            raise UserError(
                f"{data.tokenizer}/tokenizer.json has {text.tokenizer.get_vocab_size()} entries, but the workload's "
                f"vocab_size is {size}; set it to that number or more."
            )
        return text
    return Text(_train_tokenizer(data, (part for sample in train for part in sample)), SPECIAL)


def _read_tokenizer(folder: Path) -> Text:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise UserError(
            f"{path} is missing; make it where transformers is: "
            f"AutoTokenizer.from_pretrained(MODEL).save_pretrained('{folder}')."
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no type of its own
        raise UserError(f"{path} is no tokenizer of the tokenizers library ({error}); make it again.") from None
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
