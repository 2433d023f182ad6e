"""Identity of a run's files: digests of everything that determines its numbers, and which keys do."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from shardlab.schema import Strict
from shardlab.settings.types import Run

KEYS: dict[str, dict[str, str]] = {
    "config": {
        "place": "site site_settings container",
        "time": "workloads strategies sweep noise_floor_runs tensorboard restart",
    },
    "recipe": {
        "place": "",
        "time": "checkpoint_interval_steps checkpoint_interval_minutes keep_last_checkpoints",
    },
    "site": {
        "place": "nodes_max ranks_per_node_max cpus_per_rank omp_threads setup_commands environment "
        "environment_node environment_clear srun container slurm hardware",
        "time": "hang_seconds stop_seconds warning",
    },
    "strategy": {"place": "", "time": "workloads"},
    "workload": {"place": "", "time": "tensor_sizes context_sizes"},
}
"""Keys of the configuration that do not train a finished run again.

place: where and with which libraries it runs; time: when things happen, how they are watched, what a call asks for and
what is checked before. Any other determines what it ends with, or what its report measures by design (ranks, kind of
device).
"""
SIZE = ("nodes", "ranks_per_node", "devices_per_rank", "mesh")
"""Settings of a run's size: they affect times, memory and rounding. A checkpoint resumes on another one."""


class Identity(Strict):
    """The run that a file belongs to."""

    numbers: str = Field(description="SHA-256 of settings and sources that determine losses, on any number of ranks.")
    run: str = Field(description="The same with its number of ranks and its kind of device: what trains it again.")
    data: str = Field(description="Fingerprint of the prepared data set.")


def identity_of(run: Run, fingerprint: str) -> Identity:
    """Return the identity of a run over a prepared data set."""
    settings = run.model_dump(mode="json")
    return Identity(numbers=digest(of_numbers(settings)), run=digest(of_run(settings)), data=fingerprint)


def of_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a run.json trains a finished run again if it changes."""
    kept = {key: value for key, value in settings.items() if key not in ("site_name", "seal")}
    for key in ("recipe", "site"):
        kept[key] = {name: value for name, value in settings.get(key, {}).items() if trains_again(key, name)}
    return kept


def trains_again(section: str, key: str) -> bool:
    """Return whether an edit of a key trains a finished run again."""
    return not any(key in names.split() for names in KEYS[section].values())


def of_numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a run.json determines losses, on any number of ranks of any site: what a checkpoint goes by."""
    kept = {key: value for key, value in of_run(settings).items() if key not in ("site", *SIZE)}
    # DeepSpeed's settings also contain a size: the samples per rank, which follow from the others.
    engine = settings.get("engine_config") or {}
    kept["engine_config"] = {key: value for key, value in engine.items() if key != "train_micro_batch_size_per_gpu"}
    return kept


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
