"""What the first stage that differs shows: facts, by which causes.yaml is searched, and sentences for people."""

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

TABLE = Path(__file__).with_name("causes.yaml")
LISTED = 3
"""Most causes that a page lists."""


@dataclass
class Evidence:
    """Facts, each with one or more values, and sentences."""

    facts: dict[str, set[str]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)
    """Lines of a table of the samples' weights."""
    excluded: list[str] = field(default_factory=list)
    """What was tried and does not explain the difference."""

    def note(self, fact: str, *values: str) -> None:
        self.facts.setdefault(fact, set()).update(values)

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def exclude(self, pattern: str, residual: float, of: str = "the difference") -> None:
        """Add a pattern that leaves too much."""
        left = f"leaves {residual:.0%} of {of}" if residual >= 0.005 else f"leaves {residual:.1g} of {of}"
        self.excluded.append(f"{pattern} ({left})" if math.isfinite(residual) else pattern)


@dataclass(frozen=True)
class Cause:
    """An entry of causes.yaml."""

    cause: str
    says: str
    look: str
    when: dict[str, list[str]]


@cache
def causes() -> list[Cause]:
    return [Cause(**entry) for entry in yaml.safe_load(TABLE.read_text(encoding="utf-8"))]


def usual_causes(evidence: Evidence) -> list[Cause]:
    """Return the causes whose facts all hold, the one with the most facts first."""
    facts = evidence.facts
    fitting = [
        cause
        for cause in causes()
        if all(not facts.get(fact, set()).isdisjoint(values) for fact, values in cause.when.items())
    ]
    first: dict[str, Cause] = {}
    for cause in sorted(fitting, key=lambda cause: -len(cause.when)):
        first.setdefault(cause.cause, cause)
    return [*first.values()][:LISTED]
