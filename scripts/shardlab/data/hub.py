"""Data sets of the Hugging Face hub: download on the login node, then read without a network.

``datasets`` and its hub client read their environment when they are imported, so it is set here first.
"""

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardlab.data.store import fingerprint
from shardlab.errors import UserError
from shardlab.files import lock, read_json, sha256, write_json
from shardlab.settings import DataSet, HubSource

MANIFEST = "download.json"
FIRST = "first_download.json"
"""Copy of the first manifest, which no later download replaces (Snakemake removes the manifest itself)."""


def download(data: DataSet, raw: Path) -> dict[str, Any]:
    """Fetch the repository's files into ``raw`` and write the manifest download.json, last.

    A connection that breaks is taken up where it broke; a call that was ended goes on with the files that it
    had not finished. Returns the manifest: the repository, the commit, the SHA-256 of each file and the
    fingerprint of them all.

    Raises:
        UserError: no network or no such repository, or a file is not what its fingerprint says.
    """
    with lock(raw / ".lock", "downloaded"):
        # What a killed call left: the client never takes up another process's part of a file.
        for part in raw.rglob("*.incomplete"):
            if part.is_file():
                part.unlink()
        commit = _fetch(data, raw)
        snapshot = _snapshot(raw, commit)
        sources = {str(path.relative_to(snapshot)): path for path in sorted(snapshot.rglob("*")) if path.is_file()}
        manifest = {
            "schema_version": 1,
            "hub": _hub(data).model_dump(),
            "commit": commit,
            # What prepare reads: the Arrow files that `datasets` made of the sources.
            "files": {str(path.relative_to(raw)): sha256(path) for path in sorted((raw / "cache").rglob("*.arrow"))},
            "fingerprint": fingerprint({name: sha256(path) for name, path in sources.items()}),
        }
        _check_fingerprint(data, manifest, raw)
        write_json(raw / MANIFEST, manifest)
        return manifest


def _fetch(data: DataSet, raw: Path) -> str:
    """Let the client fill ``raw``; returns the commit."""
    hub = _hub(data)
    with _environment(raw, offline=False):
        from huggingface_hub import HfApi

        try:
            commit = str(HfApi().dataset_info(hub.repo, revision=hub.revision).sha)
            _load(hub, raw, commit)
        except Exception as error:  # the client raises types of half a dozen libraries
            raise UserError(
                f"data set {data.name}: {hub.repo} at {hub.revision} could not be downloaded "
                f"({type(error).__name__}: {_first_line(error)}). Run this on a node with a network, and again "
                "if it was cut. The embedded data needs none: --config data=embedded."
            ) from error
    return commit


def read(data: DataSet, raw: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Samples of the downloaded data set, a tuple of the columns that the configuration names.

    Raises:
        UserError: not downloaded, or a file changed since.
    """
    hub = _hub(data)
    remedy = f"download it again with: snakemake --cores 1 --config data=hub --force {raw}/{MANIFEST}"
    manifest = read_json(raw / MANIFEST, f"data set {data.name}", remedy)
    for name, digest in manifest["files"].items():
        if not (raw / name).exists() or sha256(raw / name) != digest:
            raise UserError(f"{raw / name} is not the file that was downloaded; remove {raw} and {remedy}.")
    with _environment(raw, offline=True):
        loaded = _load(hub, raw, manifest["commit"])
        splits = {name: loaded[theirs] for name, theirs in hub.splits.items()}
        if hub.holdout:
            parts = splits["train"].train_test_split(test_size=hub.holdout, seed=data.seed)
            splits["train"], splits["validation"] = parts["train"], parts["test"]
        return {name: _rows(rows, hub, hub.rows.get(name)) for name, rows in splits.items()}


def _rows(rows: Any, hub: HubSource, limit: int | None) -> list[tuple[Any, ...]]:
    if missing := [column for column in hub.columns if column not in rows.column_names]:
        raise UserError(f"{hub.repo} has no column {missing[0]}; it has {', '.join(rows.column_names)}.")
    kept = rows.select(range(min(limit or len(rows), len(rows))))
    return [tuple(row[column] for column in hub.columns) for row in kept]


def _load(hub: HubSource, raw: Path, commit: str) -> Any:
    from datasets import load_dataset

    return load_dataset(hub.repo, hub.config, revision=commit, cache_dir=str(raw / "cache"))


def _snapshot(raw: Path, commit: str) -> Path:
    return next((raw / "hub").glob(f"datasets--*/snapshots/{commit}"))


def _hub(data: DataSet) -> HubSource:
    if data.hub is None:
        raise UserError(f"data set {data.name}: the reader hub needs a `hub:` entry in the workload's file.")
    return data.hub


def _check_fingerprint(data: DataSet, manifest: dict[str, Any], raw: Path) -> None:
    found, hub = manifest["fingerprint"], _hub(data)
    if hub.fingerprint and found != hub.fingerprint:
        raise UserError(
            f"data set {data.name}: the files of {hub.repo} have the fingerprint {found}, but the configuration pins "
            f"{hub.fingerprint}; a file changed or is damaged. Remove {raw} and download again, or pin the new one."
        )
    if not (raw / FIRST).exists():
        write_json(raw / FIRST, manifest)
    first = read_json(raw / FIRST, "the first download", f"remove {raw} and download again")
    if first["hub"] == manifest["hub"] and first["fingerprint"] != found:
        raise UserError(
            f"data set {data.name}: {hub.repo} at {hub.revision} changed since the first download "
            f"(fingerprint {first['fingerprint']}, now {found}). Set `revision` to the old commit {first['commit']}, "
            f"or remove {raw} to take the new one."
        )


@contextmanager
def _environment(raw: Path, *, offline: bool) -> Any:
    """Point the hub client and ``datasets`` into ``raw``; offline, they make no network call."""
    values = {"HF_HOME": str(raw), "HF_HUB_CACHE": str(raw / "hub"), "HF_DATASETS_CACHE": str(raw / "cache")}
    values |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"} if offline else {}
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
