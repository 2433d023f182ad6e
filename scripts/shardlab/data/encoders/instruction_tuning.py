"""Instructions and answers, packed: inputs, targets and positions (rows, sequence_length), int32.

A document is the prompt with the instruction, the answer and the end token. Documents fill a row one after the other,
each whole. targets: the next token where it is the answer's or the end, -100 elsewhere; positions: counted from 0 in
each document. What is left at the end of a row has end tokens, each a document of its own, without targets.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from shardlab.data.encoders import Arrays, parts_of
from shardlab.data.samples import Samples
from shardlab.data.text import Text, checked_text
from shardlab.errors import UserError
from shardlab.settings.types import DataSet

TEXT = True
SAMPLE = "an instruction and its answer"
NAMES = ("inputs", "targets", "positions")
TOKEN = np.dtype(np.int32).itemsize
IGNORE = -100
INSTRUCTION = "{instruction}"
PROMPT = f"### Instruction:\n{INSTRUCTION}\n\n### Response:\n"
"""Of Stanford Alpaca (github.com/tatsu-lab/stanford_alpaca)."""
Row = tuple[list[int], list[int], list[int]]
"""A document or a row of several: inputs, targets, positions."""


def encode(data: DataSet, samples: Samples, text: Text, counts: Counter[str]) -> Iterator[Arrays]:
    """Encode samples (instruction, answer).

    Raises:
        UserError: the prompt has no place for the instruction, or no document fits.
    """
    length = data.options["sequence_length"]
    rows = _packed(_documents(data, samples, text, counts), length, text.token("end"), counts)
    for part in parts_of(rows, lambda row: len(NAMES) * TOKEN * length):
        arrays = (np.array(column, dtype=np.int32) for column in zip(*part, strict=True))
        yield dict(zip(NAMES, arrays, strict=True))


def _documents(data: DataSet, samples: Samples, text: Text, counts: Counter[str]) -> Iterator[Row]:
    """Yield the documents; an instruction is cut so that its document has at most ``document_tokens``."""
    longest = min(data.options["sequence_length"], data.options.get("document_tokens", data.options["sequence_length"]))
    before, found, after = data.options.get("prompt", PROMPT).partition(INSTRUCTION)
    if not found:
        raise UserError(f"the data option prompt has no {INSTRUCTION}; write that where the instruction belongs.")
    end, (behind,) = text.token("end"), text.ids([after], Counter())
    pairs = ((before + checked_text(instruction), checked_text(answer)) for instruction, answer in samples)
    for part in parts_of(pairs, lambda pair: TOKEN * sum(map(len, pair))):
        prompts, answers = (text.ids(list(column), counts) for column in zip(*part, strict=True))
        for prompt, answer in zip(prompts, answers, strict=True):
            room = longest - len(behind) - len(answer)
            if room < 1:
                counts["pairs dropped, as their answer leaves no room for the instruction"] += 1
                continue
            counts["instructions truncated"] += len(prompt) > room
            tokens = [*prompt[:room], *behind, *answer, end]
            asked = len(tokens) - len(answer) - 2
            yield tokens[:-1], [IGNORE] * asked + tokens[asked + 1 :], [*range(len(tokens) - 1)]


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
