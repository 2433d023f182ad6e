"""timeline.json: what ranks did in one step, and when."""

from typing import Literal

from pydantic import Field

from shardlab.records.reports import Report
from shardlab.schema import Strict
from shardlab.settings.run_identity import Identity

RANKS_SHOWN, EVENTS_SHOWN = 16, 500
"""Maximum ranks of a run, and messages of a rank, in a timeline: the first ones."""


class Span(Strict):
    """An interval, in seconds from the start of the step."""

    name: str = Field(description="forward, backward, losses (their sum over the ranks) or update.")
    piece: int | None = Field(None, description="Micro-batch of a pipeline's schedule.")
    start: float = Field(description="Start time.")
    end: float = Field(description="End time.")


class Sent(Strict):
    """One collective of a rank, in seconds from the start of the step, on the host, which may not wait for it."""

    start: float = Field(description="Time when the host began to start it.")
    end: float = Field(description="Time when the host continued.")
    axis: str = Field(description="Mesh axis; world: all ranks.")
    collective: str = Field(description="Collective.")
    bytes: float = Field(description="Bytes sent by this rank.")


class Timeline(Report):
    """Activity of the first ranks over one step: timeline.json. Times are those of a counted step."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    identity: Identity = Field(description="Run that this belongs to.")
    step: int = Field(description="The step, counted from 0.")
    phases: list[list[Span]] = Field(description="Phases of each rank.")
    sent: list[list[Sent]] = Field(description="Collectives of each rank.")
    computed: list[list[Span]] = Field(
        description="Compute times of each pipeline rank (mp: device) in the last step; empty otherwise."
    )
