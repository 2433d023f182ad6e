"""What usually causes a pattern: the table in causes.yaml."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from traindiff.evidence import Evidence

TABLE = Path(__file__).with_name("causes.yaml")
LISTED = 3
"""Most causes that a page lists."""


@dataclass(frozen=True)
class Cause:
    """A usual cause."""

    cause: str
    """Its name."""
    says: str
    look: str
    when: dict[str, list[str]]


@cache
def table() -> list[Cause]:
    """Return all causes."""
    return [Cause(**entry) for entry in yaml.safe_load(TABLE.read_text(encoding="utf-8"))]


def usual(evidence: Evidence) -> list[Cause]:
    """Return the causes whose facts all hold, the one with the most facts first."""
    facts = evidence.facts
    fitting = [
        cause
        for cause in table()
        if all(not facts.get(fact, set()).isdisjoint(values) for fact, values in cause.when.items())
    ]
    first: dict[str, Cause] = {}
    for cause in sorted(fitting, key=lambda cause: -len(cause.when)):
        first.setdefault(cause.cause, cause)
    return [*first.values()][:LISTED]
