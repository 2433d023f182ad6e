"""timeline.json: what ranks did in one step, and when."""

from typing import Literal

from pydantic import Field

from shardlab.report.records import Report
from shardlab.schema import Strict
from shardlab.settings.identity import Identity

RANKS_SHOWN, EVENTS_SHOWN = 16, 500
"""Ranks of a run, and messages of a rank, that a timeline has: the first ones."""


class Span(Strict):
    """Something that took a while; seconds from the step's begin."""

    name: str = Field(description="What: forward, backward, losses (their sum over the ranks), update.")
    piece: int | None = Field(None, description="Micro-batch of a pipeline's schedule.")
    start: float = Field(description="When it began.")
    end: float = Field(description="When it ended.")


class Sent(Strict):
    """One collective of a rank; seconds from the step's begin, by the host, which need not wait for it."""

    start: float = Field(description="When the host began to start it.")
    end: float = Field(description="When the host went on.")
    axis: str = Field(description="Mesh axis; world: all ranks.")
    collective: str = Field(description="Collective.")
    bytes: float = Field(description="Bytes that this rank sends.")


class Timeline(Report):
    """timeline.json: what the first ranks did in one step, for drawings. Its times are those of a counted step."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    identity: Identity = Field(description="Which run this belongs to.")
    step: int = Field(description="The step, counted from 0.")
    phases: list[list[Span]] = Field(description="Of each rank.")
    sent: list[list[Sent]] = Field(description="Of each rank.")
    computed: list[list[Span]] = Field(
        description="Of each rank of a pipeline (device of mp), in the last step: when it computed; else empty."
    )
