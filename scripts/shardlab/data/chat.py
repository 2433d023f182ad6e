"""Conversations to tokens, as the chat template of a transformers model writes them.

transformers is imported where it is used: only lists of messages need it.
"""

import os
import re
from collections import Counter
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from shardlab.data.text import Text, checked_text
from shardlab.errors import UserError

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Mark in a template of where a turn of the assistant begins."""
DATE = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
DAY = date(2024, 7, 26)
"""What templates write in place of today's date: that of Llama 3.1's template, if it is given none."""


class Chat:
    """The chat template in a model's folder, and the tokenizer beside it."""

    def __init__(self, folder: Path, text: Text) -> None:
        """Read them; ``text`` is the encoder of that model.

        Raises:
            UserError: there is no template, or what it writes changes from day to day.
        """
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import PreTrainedTokenizerFast

        self.text, self.tokenizer = text, PreTrainedTokenizerFast.from_pretrained(folder)
        if hasattr(self.tokenizer.backend_tokenizer.model, "dropout"):
            self.tokenizer.backend_tokenizer.model.dropout = None
        if self.tokenizer.chat_template is None:
            raise UserError(
                f"{folder} has no chat template, which messages need: name a model that has one (chat_template.jinja "
                "or a key of tokenizer_config.json), or give pairs of an instruction and its answer."
            )
        template, dates = DATE.subn(lambda found: repr(DAY.strftime(found[2])), self.tokenizer.get_chat_template())
        if "strftime_now(" in template:
            raise UserError(f"the chat template of {folder} writes the time, so no two preparations agree; remove it.")
        if dates:
            print(f"note: the chat template of {folder} writes the date, which is {DAY} in all conversations")
        self.marked = bool(GENERATION.search(template))
        # Control tokens that are written in messages are text, as special tokens are elsewhere.
        self._tokens = partial(
            self.tokenizer.apply_chat_template, chat_template=template, return_dict=False, sanitize_control_tokens=True
        )
        self._with_mask = partial(
            self.tokenizer.apply_chat_template, chat_template=template, return_assistant_tokens_mask=True
        )

    def document(self, messages: Any, counts: Counter[str]) -> tuple[list[int], list[bool]]:
        """Return the tokens of a conversation, and which of them are of the assistant's turns.

        Raises:
            ValueError: it is no list of messages, the template does not take it, or the turns cannot be told apart.
        """
        _check(messages)
        try:
            tokens = self._tokens(messages)
            turns = self._marked(messages, tokens) if self.marked else self._turns(messages, tokens)
        except Exception as error:  # of whatever a template does
            raise ValueError(f"the chat template gives no targets: {error}") from error
        if not any(turns):
            raise ValueError("the conversation has no turn of the assistant")
        self.text.check([tokens])
        contents = "\n".join(message["content"] for message in messages)
        counts["special tokens written in a text, encoded as text"] += len(self.text.written_in(contents))
        counts["tokens that stand for what the tokenizer does not know"] += tokens.count(self.text.unknown)
        return tokens, turns

    def _marked(self, messages: list[dict[str, Any]], tokens: list[int]) -> list[bool]:
        marked = self._with_mask(messages)
        if marked["input_ids"] != tokens:
            raise ValueError("special tokens are written in a message, which marks of the turns do not allow")
        return [bool(each) for each in marked["assistant_masks"]]

    def _turns(self, messages: list[dict[str, Any]], tokens: list[int]) -> list[bool]:
        """Find the assistant's turns of a template without marks: what it writes after the prompt for each."""
        turns = [False] * len(tokens)
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt = self._tokens(messages[:number], add_generation_prompt=True)
                whole = self._tokens(messages[: number + 1])
                if not len(prompt) < len(whole) or tokens[: len(whole)] != whole or whole[: len(prompt)] != prompt:
                    raise ValueError(
                        f"up to message {number} it writes something else than in the whole conversation; mark the "
                        "assistant's turns in it with {% generation %}"
                    )
                turns[len(prompt) : len(whole)] = [True] * (len(whole) - len(prompt))
        return turns


def _check(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"it has {str(messages)[:40]}, of type {type(messages).__name__}, where messages should be")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ValueError(f"message {number} is {str(message)[:60]}, which has no `role` and `content`")
        checked_text(message["role"])
        checked_text(message["content"])
