"""Identity of a run's files: digests of everything that determines its numbers."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from shardlab.schema import Strict
from shardlab.settings.types import Run

PLACE = ("site", "site_name", "nodes", "ranks_per_node", "devices_per_rank", "mesh")
"""Settings of place and size: they affect times and memory, but not losses."""

WHEN = ("checkpoint_interval_steps", "checkpoint_interval_minutes", "keep_last_checkpoints")
"""Recipe keys for when checkpoints are written: they do not affect the result."""


class Identity(Strict):
    """The run that a file belongs to."""

    numbers: str = Field(
        description="SHA-256 of settings and sources that determine losses: run.json without its site."
    )
    run: str = Field(description="SHA-256 of all of run.json, which determines times and memory.")
    data: str = Field(description="Fingerprint of the prepared data set.")


def identity_of(run: Run, fingerprint: str) -> Identity:
    """Return the identity of a run over a prepared data set. It does not depend on what the run's plan says."""
    settings = run.configured.model_dump(mode="json")
    numbers = {key: value for key, value in settings.items() if key not in PLACE}
    numbers["recipe"] = {key: value for key, value in settings["recipe"].items() if key not in WHEN}
    # DeepSpeed's settings also contain a size: the samples per rank, which follow from the others.
    numbers["engine_config"] = {
        key: value
        for key, value in (settings["engine_config"] or {}).items()
        if key != "train_micro_batch_size_per_gpu"
    }
    return Identity(numbers=digest(numbers), run=digest(settings), data=fingerprint)


def digest(value: Any) -> str:
    """Return the SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def difference(planned: dict[str, Any], found: dict[str, Any]) -> str | None:
    """Return the first key, ``outer.inner``, that differs between two nested settings; None if none does."""
    ours, other = dict(flat(planned)), dict(flat(found))
    return next((key for key in (*ours, *other) if ours.get(key) != other.get(key)), None)


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (outer.inner key, value) of nested settings."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
