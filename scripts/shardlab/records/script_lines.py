"""metrics.jsonl as a script writes it: one JSON object per optimizer step (docs/your-own.md)."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shardlab.errors import UserError

EXAMPLE = '{"step": 0, "loss": 2.3}'
WIDTH = 60
"""Characters of a line that an error shows."""
DUMPS = "dumps"
"""Folder next to metrics.jsonl for what a script dumps of its first steps."""


class Line(NamedTuple):
    """One step."""

    step: int
    loss: float
    grad_norm: float | None


def parse(text: str, where: str) -> Line:
    """Return what a line says.

    Raises:
        UserError: it is not JSON, lacks a value, or a value is not a finite number; begins with ``where``.
    """
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        shown = text if len(text) <= WIDTH else f"{text[:WIDTH]}..."
        raise UserError(f"{where} is not a JSON object: {shown!r}; write lines such as {EXAMPLE}.")
    step = values.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise UserError(f"{where} has no `step`, a number counted from 0; write lines such as {EXAMPLE}.")
    where = f"{where} (step {step})"
    norm = None if values.get("grad_norm") is None else _number(values, "grad_norm", where)
    return Line(step, _number(values, "loss", where), norm)


def _number(values: dict[str, Any], key: str, where: str) -> float:
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"{where} has no number `{key}`; write lines such as {EXAMPLE}.")
    if not math.isfinite(value):
        raise UserError(f"{where} has the {key} {value}; the training diverged, or its numbers are wrong.")
    return float(value)


def has_dumps(folder: Path) -> bool:
    """Return whether a script dumped its first steps into a folder."""
    return any(folder.glob("**/*.safetensors"))


class Lines:
    """The lines of a file that grows, each checked once: their steps must follow one another."""

    def __init__(self, path: Path, earlier: int, count: int) -> None:
        """``earlier``: steps of earlier attempts, which may be taken again; ``count``: steps of the training."""
        self.path, self.earlier, self.count = path, earlier, count
        self.first: int | None = None
        """The first step of this attempt; None before its line."""
        self.next = 0
        """The step that is expected next, once there is a first one."""
        self._read: list[str] = []
        self._offset = self._inode = 0

    def new(self, *, ended: bool = False) -> list[Line]:
        """Return the lines that were added since the last call; ``ended``: none follows.

        Raises:
            UserError: see ``parse``; or a step is missing, repeated or too many, or lines were changed.
        """
        return [self._checked(text) for text in self._added(ended=ended)]

    def finish(self) -> None:
        """Check that no step is missing at the end.

        Raises:
            UserError: one is.
        """
        taken = self.earlier if self.first is None else self.next
        if taken < self.count:
            what = f"ends after step {taken - 1}" if self.path.exists() and taken else "has no line"
            raise UserError(
                f"{self.path} {what}, but this training has {self.count} steps, 0 to {self.count - 1}; write a line "
                "for each of them."
            )

    def _checked(self, text: str) -> Line:
        where = f"line {len(self._read)} of {self.path}"
        line = parse(text, where)
        if self.first is None and line.step > self.earlier:
            expected = "of step 0" if not self.earlier else f"of one of the steps 0 to {self.earlier}"
            raise UserError(
                f"{where} is of step {line.step}, but the first line of this attempt must be {expected}; no step may "
                "be missing."
            )
        if self.first is not None and line.step != self.next:
            wrong = f"step {self.next} is missing" if line.step > self.next else "a step is twice or out of order"
            raise UserError(f"{where} is of step {line.step}, but step {self.next} comes next: {wrong}.")
        if line.step >= self.count:
            raise UserError(
                f"{where} is of step {line.step}, but this training has {self.count} steps, 0 to {self.count - 1} "
                "(recipe.epochs, recipe.max_steps)."
            )
        if self.first is None:
            self.first = line.step
        self.next = line.step + 1
        return line

    def _added(self, *, ended: bool) -> Iterator[str]:
        """Yield the complete lines that were added; also of a file that the script replaced by a longer one."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                again = found.st_ino != self._inode or found.st_size < self._offset
                self._inode, self._offset = found.st_ino, 0 if again else self._offset
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return
        end = len(content) if ended else content.rfind(b"\n") + 1
        self._offset += end
        texts = [text for text in content[:end].decode(errors="replace").splitlines() if text.strip()]
        if again and texts[: len(self._read)] != self._read:
            raise UserError(
                f"{self.path} no longer has the lines that it had; write each step's line once, and change none."
            )
        for text in texts[len(self._read) :] if again else texts:
            self._read.append(text)
            yield text
