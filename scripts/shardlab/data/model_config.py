"""The config.json of a transformers model whose tokenizer encodes a data set: what tokens the model takes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardlab.errors import UserError
from shardlab.settings import pretrained

SPECIAL = {
    "pad": ("pad_token_id",),
    "start": ("decoder_start_token_id", "bos_token_id"),
    "end": ("eos_token_id",),
}
"""Special token: keys with its id, of which the first one that is set counts; ``end`` stands for the others."""
ENCODER_POSITIONS, POSITIONS = (
    (first, "n_positions", "max_position_embeddings", "max_seq_len")
    for first in ("max_encoder_position_embeddings", "max_decoder_position_embeddings")
)
LENGTHS = {"sequence_length": POSITIONS, "document_tokens": ENCODER_POSITIONS, "summary_tokens": POSITIONS}
"""Option of a data set: keys with the number of positions that limits it."""
AFTER_PAD = re.compile("camembert|data2vec-text|roberta|roberta-prelayernorm|xlm-roberta|xlm-roberta-xl")
"""Types of models that number positions from the id after the one of padding."""
TABLES = re.compile(
    f"{AFTER_PAD.pattern}|bart|bert|bert-generation|big_bird|bigbird_pegasus|biogpt|blenderbot|blenderbot-small|codegen|"
    "ctrl|electra|ernie|gpt-sw3|gpt2|gpt_bigcode|gpt_neo|gptj|led|marian|mbart|megatron-bert|mpt|mvp|openai-gpt|opt|"
    "pegasus|plbart|rembert|roc_bert|roformer|xlm"
)
"""Types of models with a table of positions. Others compute any position (rotary, relative, ALiBi, sinusoidal)."""


class ModelConfig:
    """A model's config.json with the keys that a workload changes."""

    def __init__(self, folder: Path, changes: Mapping[str, Any]) -> None:
        self.path = folder / "config.json"
        content = pretrained.read_keys(folder)
        # Of a model of texts and pictures some keys are those of its part for texts, others stand beside that.
        own = {key: value for key, value in (content.get("text_config") or {}).items() if value is not None}
        self.keys: dict[str, Any] = {**content, **own, **changes}
        self.changes = changes

    @property
    def vocab_size(self) -> int | None:
        """Number of ids that the model has, if it says so."""
        return self.keys.get("vocab_size")

    def place(self, key: str) -> str:
        """Return where a key stands."""
        return "`model:` of the workload's size" if key in self.changes else str(self.path)

    def special_tokens(self) -> dict[str, int]:
        """Return the ids of ``pad``, ``start`` (of a summary) and ``end``.

        Raises:
            UserError: there is no end-of-text token.
        """
        found = {}
        for name, keys in SPECIAL.items():
            ids = [self.keys[key] for key in (*keys, *SPECIAL["end"]) if self.keys.get(key) is not None]
            if not ids:
                raise UserError(
                    f"{self.path} has no eos_token_id; set it, there or under `model:` of the workload's size, to the "
                    "id that ends a text."
                )
            found[name] = ids[0][0] if isinstance(ids[0], list) else ids[0]
        return found

    def check_lengths(self, options: Mapping[str, Any]) -> None:
        """Check that the model has a position for each token of a sample.

        Raises:
            UserError: it has fewer.
        """
        kind = str(self.keys.get("model_type"))
        if not TABLES.fullmatch(kind):
            return
        for option, keys in LENGTHS.items():
            key = next((key for key in keys if isinstance(self.keys.get(key), int)), None)
            if key is None or not isinstance(options.get(option), int):
                continue
            if option == "sequence_length" and "document_tokens" in options:  # positions begin again in each document
                continue
            used = self.keys.get("pad_token_id", 1) + 1 if AFTER_PAD.fullmatch(kind) else 0
            if options[option] > (positions := self.keys[key] - used):
                raise UserError(
                    f"{option} is {options[option]}, but the model has {positions} positions ({self.place(key)}: {key} "
                    f"{self.keys[key]}); set {option} to at most {positions}."
                )
