"""Instructions and answers, packed: inputs, targets and positions (rows, sequence_length), int32.

A document is the prompt with the instruction, the answer and the end token, or a conversation as the model's chat
template writes it. Documents fill a row one after the other, each whole. targets: the next token where it is the
answer's or the end, or of a turn of the assistant, -100 elsewhere; positions: counted from 0 in each document. What is
left at the end of a row has end tokens, each a document of its own, without targets.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path

import numpy as np

from shardlab.data import Samples
from shardlab.data.chat import Chat
from shardlab.data.encoders import Arrays, parts_of, sized
from shardlab.data.text import Text, checked_text
from shardlab.errors import UserError
from shardlab.settings.types import DataSet

TEXT = True
SAMPLE = "an instruction and its answer, or a list of messages"
NAMES = ("inputs", "targets", "positions")
TOKEN = np.dtype(np.int32).itemsize
IGNORE = -100
INSTRUCTION = "{instruction}"
PROMPT = f"### Instruction:\n{INSTRUCTION}\n\n### Response:\n"
"""Of Stanford Alpaca (github.com/tatsu-lab/stanford_alpaca)."""
Row = tuple[list[int], list[int], list[int]]
"""A document or a row of several: inputs, targets, positions."""


def encode(data: DataSet, samples: Samples, text: Text, counts: Counter[str]) -> Iterator[Arrays]:
    """Encode samples (instruction, answer) or (messages,).

    Raises:
        UserError: the prompt has no place for the instruction, the model has no chat template, or no document fits.
    """
    length = data.options["sequence_length"]
    longest = min(length, data.options.get("document_tokens", length))
    groups = groupby(sized(samples, 1 if data.tokenizer else 2, 2), key=len)
    documents = chain.from_iterable(
        (_conversations if size == 1 else _pairs)(data, group, text, longest, counts) for size, group in groups
    )
    rows = _packed(documents, length, text.token("end"), counts)
    for part in parts_of(rows, lambda row: len(NAMES) * TOKEN * length):
        arrays = (np.array(column, dtype=np.int32) for column in zip(*part, strict=True))
        yield dict(zip(NAMES, arrays, strict=True))


def _pairs(data: DataSet, samples: Samples, text: Text, longest: int, counts: Counter[str]) -> Iterator[Row]:
    """Yield the documents; an instruction is cut so that its document has at most ``longest`` tokens."""
    before, found, after = data.options.get("prompt", PROMPT).partition(INSTRUCTION)
    if not found:
        raise UserError(f"the data option prompt has no {INSTRUCTION}; write that where the instruction belongs.")
    end, (behind,) = text.token("end"), text.ids([""], Counter(), after=after)
    pairs = ((checked_text(instruction), checked_text(answer)) for instruction, answer in samples)
    for part in parts_of(pairs, lambda pair: TOKEN * (len(before + after) + sum(map(len, pair)))):
        instructions, texts = zip(*part, strict=True)
        prompts, answers = text.ids(list(instructions), counts, before, after), text.ids(list(texts), counts)
        for instruction, prompt, answer in zip(instructions, prompts, answers, strict=True):
            room = longest - len(answer)
            if room <= len(behind):
                counts["pairs dropped, as their answer leaves no room for the instruction"] += 1
                continue
            if len(prompt) > room:
                counts["instructions truncated"] += 1
                (cut,) = text.ids([instruction], Counter(), before)
                prompt = cut[: room - len(behind)] + behind
            yield _document([*prompt, *answer, end], [False] * len(prompt) + [True] * (len(answer) + 1))


def _conversations(data: DataSet, samples: Samples, text: Text, longest: int, counts: Counter[str]) -> Iterator[Row]:
    chat = Chat(Path(str(data.tokenizer)), text)
    for (messages,) in samples:
        tokens, turns = chat.document(messages, counts)
        if len(tokens) - 1 > longest:
            counts["conversations dropped, as they are longer than a document or a row may be"] += 1
        else:
            yield _document(tokens, turns)


def _document(tokens: list[int], wanted: list[bool]) -> Row:
    targets = [token if each else IGNORE for token, each in zip(tokens[1:], wanted[1:], strict=True)]
    return tokens[:-1], targets, [*range(len(tokens) - 1)]


def _packed(documents: Iterable[Row], length: int, end: int, counts: Counter[str]) -> Iterator[Row]:
    """Yield rows of consecutive documents, of as many as fit."""
    empty: Row = ([], [], [])
    row = empty
    for document in documents:
        if len(row[0]) + len(document[0]) > length:
            yield _filled(row, length, end, counts)
            row = empty
        row = (row[0] + document[0], row[1] + document[1], row[2] + document[2])
    if not row[0]:
        raise UserError(f"no document fits into sequence_length {length}; increase it.")
    yield _filled(row, length, end, counts)


def _filled(row: Row, length: int, end: int, counts: Counter[str]) -> Row:
    left = length - len(row[0])
    counts["positions that no document fills"] += left
    return row[0] + [end] * left, row[1] + [IGNORE] * left, row[2] + [0] * left


def blank(options: dict[str, int], rows: int) -> Arrays:
    """Return such arrays without content, each row one document."""
    length = options["sequence_length"]
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    return {"inputs": np.zeros_like(positions), "targets": np.zeros_like(positions), "positions": positions}
