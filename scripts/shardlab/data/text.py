"""Texts to tokens: with the tokenizer of the workload's model, or one that is trained on the train split."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shardlab.data.model_config import ModelConfig
from shardlab.errors import UserError
from shardlab.settings.types import DataSet

SPECIAL = {"pad": 0, "start": 1, "end": 2}
"""Ids of <pad>, <bos> and <eos> in every tokenizer that is trained here."""
TRAINED_ON = 6_000_000
"""Bytes of text, the first of the train split, that a tokenizer is trained on: of text in which no word comes back, the
trainer keeps 125 bytes per byte.
"""
NEVER = -1e6
"""Score of a piece that no text is split into: a text's own pieces have some -10 each."""


class Text(NamedTuple):
    """Encoder of text: tokenizer and special tokens."""

    tokenizer: Tokenizer
    special: dict[str, int]
    """Ids of ``pad``, ``start`` and ``end``."""
    encoder: Tokenizer
    """The tokenizer, but special tokens that are written in a text are text to it."""
    written: re.Pattern[str] | None
    """Special tokens as they are written."""
    vocab_size: int | None
    """Number of ids that the model has, if known."""
    where: str
    """Where that number is from."""
    unknown: int
    """Id of the token that stands for whatever the tokenizer does not know; -1: it has none."""

    def ids(self, texts: list[str], counts: Counter[str], before: str = "", after: str = "") -> list[list[int]]:
        """Return the tokens of each text between ``before`` and ``after``, without special tokens around them.

        Special tokens that are written in these two, which are configuration, are tokens; in a text they are text.

        Raises:
            UserError: the model does not have one of them.
        """
        around = self.tokenizer if self.written_in(before + after) else self.encoder
        whole = [f"{before}{text}{after}" for text in texts]
        rows = [each.ids for each in around.encode_batch_fast(whole, add_special_tokens=False)]
        for index, text in enumerate(texts):
            counts["blank texts"] += not text.strip()
            if found := self.written_in(text):
                inside = self.encoder.encode(text, add_special_tokens=False).ids
                special = {self.tokenizer.token_to_id(token) for token in found}
                kind = "text" if special.isdisjoint(inside) else "special tokens"
                counts[f"special tokens written in a text, encoded as {kind}"] += len(found)
                if around is self.tokenizer:
                    begin, end = (self.tokenizer.encode(side, add_special_tokens=False).ids for side in (before, after))
                    rows[index] = begin + inside + end
            counts["tokens that stand for what the tokenizer does not know"] += rows[index].count(self.unknown)
        self.check(rows)
        return rows

    def written_in(self, text: str) -> list[str]:
        """Return the special tokens that are written in a text."""
        return self.written.findall(text) if self.written else []

    def check(self, rows: list[list[int]]) -> None:
        """Check that the model has all tokens.

        Raises:
            UserError: it does not.
        """
        most = max((max(row, default=0) for row in rows), default=0)
        if self.vocab_size is not None and most >= self.vocab_size:
            needed = max(self.tokenizer.get_vocab().values()) + 1
            raise UserError(
                f"the token {self.tokenizer.id_to_token(most)!r} of a text has the id {most}, but {self.where} has "
                f"vocab_size {self.vocab_size}; use the tokenizer that the model was made with, or save the model with "
                f"resize_token_embeddings({needed}). Only new weights (`pretrained: false` under `model:`) take "
                f"another vocab_size: {needed}."
            )

    def token(self, name: str) -> int:
        """Return the id of a special token.

        Raises:
            UserError: the model does not have it.
        """
        id = self.special[name]
        if id < 0 or (self.vocab_size is not None and id >= self.vocab_size):
            raise UserError(
                f"the {name} token has the id {id}, but {self.where} has vocab_size {self.vocab_size}; set the id "
                "under `model:` of the workload's size to one from 0 to vocab_size - 1."
            )
        return id


def text_of(tokenizer: Tokenizer, special: dict[str, int], vocab_size: int | None = None, where: str = "") -> Text:
    """Return the encoder of a tokenizer, to which special tokens that are written in a text are text."""
    added = tokenizer.get_added_tokens_decoder().values()
    names = {token.content for token in added if token.special}
    names |= {name for id in special.values() if id >= 0 and (name := tokenizer.id_to_token(id))}
    longest_first = sorted(names, key=len, reverse=True)
    written = re.compile("|".join(map(re.escape, longest_first))) if names else None
    content = json.loads(tokenizer.to_str())
    if content["model"]["type"] == "Unigram":
        # Its vocabulary has the special tokens too, as pieces with the best score.
        for piece in content["model"]["vocab"]:
            if piece[0] in names:
                piece[1] = NEVER
    encoder = Tokenizer.from_str(json.dumps(content))
    encoder.encode_special_tokens = True
    model = content["model"]
    unknown = tokenizer.token_to_id(model["unk_token"]) if model.get("unk_token") else model.get("unk_id")
    return Text(tokenizer, special, encoder, written, vocab_size, where, -1 if unknown is None else unknown)


def checked_text(value: Any) -> str:
    """Return a text of a sample.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        hint = " (in CSV, empty fields and words such as NA, null or None are read as missing)" if missing else ""
        if isinstance(value, list):
            hint = " (messages are for task instruction_tuning with a transformers model, whose template they need)"
        raise ValueError(f"it has {str(value)[:40]}, of type {type(value).__name__}, where a text should be{hint}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        character = f"U+{ord(value[error.start]):04X}"
        raise ValueError(
            f"character {error.start} of a text is the lone surrogate {character}, which is not a character of Unicode"
        ) from None
    return value


def model_encoder(data: DataSet) -> Text:
    """Return the encoder of the model whose folder a data set names.

    Raises:
        UserError: it has no tokenizer, or the samples are longer than what the model takes.
    """
    folder = Path(str(data.tokenizer))
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
    if dropout := getattr(tokenizer.model, "dropout", None):
        print(f"note: {path} has dropout {dropout}, which draws other tokens each time; texts are encoded without it")
        tokenizer.model.dropout = None
    config = ModelConfig(folder, data.model)
    config.check_lengths(data.options)
    sizes = [(config.vocab_size, config.place("vocab_size")), (data.options.get("vocab_size"), "the workload")]
    vocab_size, where = min(((size, where) for size, where in sizes if size is not None), default=(None, ""))
    return text_of(tokenizer, config.special_tokens(), vocab_size, where)


def trained(data: DataSet, texts: Iterable[str]) -> Text:
    """Train byte-level BPE (Sennrich et al., 2016, arXiv:1508.07909) with at most ``vocab_size`` entries.

    Raises:
        UserError: there must be more.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=data.options["vocab_size"],
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first(texts, TRAINED_ON), trainer)
    if (size := tokenizer.get_vocab_size()) > data.options["vocab_size"]:
        raise UserError(
            f"data set {data.name}: vocab_size is {data.options['vocab_size']}, but a tokenizer has at least {size} "
            "entries: all bytes and three special tokens; set it to at least that number."
        )
    return text_of(tokenizer, SPECIAL)


def _first(texts: Iterable[str], size: int) -> Iterator[str]:
    """Yield texts of ``size`` bytes together, the last one cut."""
    for text in texts:
        content = text.encode()
        yield text if len(content) <= size else content[:size].decode(errors="ignore")
        size -= len(content)
        if size <= 0:
            return
