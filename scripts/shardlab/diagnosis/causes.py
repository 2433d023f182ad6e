"""What usually causes a pattern: the table in causes.yaml."""

from functools import cache
from pathlib import Path

import yaml

from shardlab.diagnosis.evidence import Evidence
from shardlab.schema import Strict

TABLE = Path(__file__).with_name("causes.yaml")
LISTED = 3
"""Most causes that a page lists."""


class Cause(Strict):
    """A usual cause."""

    cause: str
    """Its name."""
    says: str
    look: str
    when: dict[str, list[str]]


@cache
def table() -> list[Cause]:
    """Return all causes."""
    return [Cause.model_validate(entry) for entry in yaml.safe_load(TABLE.read_text(encoding="utf-8"))]


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
