"""Data sets and models of the Hugging Face hub: downloaded on the login node, then read offline.

``datasets`` and its hub client read their environment when they are imported, so it is set here first.
"""

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardlab.data.store import fingerprint
from shardlab.errors import UserError, remedy
from shardlab.files import lock, read_json, sha256, write_json
from shardlab.settings.types import DataSet, HubSource, Model

MANIFEST = "download.json"
FIRST = "first_download.json"
"""Copy of the first manifest, which later downloads do not replace (Snakemake removes the manifest itself)."""
MODEL_FILES = ("config.json", "generation_config.json", "tokenizer*.json", "special_tokens_map.json")
MODEL_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")


def download(data: DataSet, raw: Path) -> dict[str, Any]:
    """Download the repository's files into ``raw`` and write the manifest download.json, last.

    Interrupted transfers and calls resume with the unfinished files. Returns the manifest: the repository, the commit,
    the SHA-256 of each file and the fingerprint of all files.

    Raises:
        UserError: no network or no such repository, or a file does not match its fingerprint.
    """
    with lock(raw / ".lock", "downloaded"):
        # Left by a killed call: the client never resumes another process's partial file.
        for part in raw.rglob("*.incomplete"):
            if part.is_file():
                part.unlink()
        commit = _fetch(data, raw)
        snapshot = _snapshot(raw, commit)
        sources = {str(path.relative_to(snapshot)): path for path in sorted(snapshot.rglob("*")) if path.is_file()}
        # Read by prepare: the Arrow files that `datasets` made of the sources.
        files = {str(path.relative_to(raw)): sha256(path) for path in sorted((raw / "cache").rglob("*.arrow"))}
        digests = {name: sha256(path) for name, path in sources.items()}
        return write_manifest(raw, f"data set {data.name}", _hub(data).model_dump(), commit, files, digests)


def download_model(model: Model, folder: Path) -> dict[str, Any]:
    """Download a model's files into ``folder``, write the manifest download.json last, and return it.

    Raises:
        UserError: no network or no such repository, or the branch moved since the first download.
    """
    if model.repo is None:
        raise UserError(f"model {model.name} is a local folder; there is nothing to download.")
    wanted = [*MODEL_FILES, *(MODEL_WEIGHTS if model.pretrained else ())]
    with lock(folder / ".lock", "downloaded"):
        with environment(folder / ".cache", offline=False):
            from huggingface_hub import HfApi, snapshot_download

            try:
                commit = str(HfApi().model_info(model.repo, revision=model.revision).sha)
                snapshot_download(model.repo, revision=commit, local_dir=folder, allow_patterns=wanted)
            except Exception as error:  # the client raises types of half a dozen libraries
                raise UserError(
                    f"model {model.repo} at {model.revision} could not be downloaded ({type(error).__name__}: "
                    f"{first_line(error)}). Run this on a node with a network, and again if it was interrupted."
                ) from error
        files = {path.name: sha256(path) for pattern in wanted for path in sorted(folder.glob(pattern))}
        if "config.json" not in files:
            raise UserError(f"model {model.repo} has no config.json; name a transformers model.")
        if model.pretrained and not any(name.endswith(".safetensors") for name in files):
            raise UserError(f"model {model.repo} has no safetensors weights; convert them, or set pretrained: false.")
        return write_manifest(
            folder, f"model {model.repo}", {"repo": model.repo, "revision": model.revision}, commit, files
        )


def write_manifest(
    raw: Path, what: str, hub: dict[str, Any], commit: str, files: dict[str, str], sources: dict[str, str] | None = None
) -> dict[str, Any]:
    """Write and return the manifest of a download: ``hub`` requested it, ``files`` (SHA-256) are read from it.

    ``sources`` are the repository's own files (default: ``files``), which the fingerprint covers.

    Raises:
        UserError: the fingerprint differs from the one that the configuration pins, or from the first download's.
    """
    manifest = {
        "schema_version": 1,
        "hub": hub,
        "commit": commit,
        "files": files,
        "fingerprint": fingerprint(files if sources is None else sources),
    }
    _check_fingerprint(what, manifest, raw)
    write_json(raw / MANIFEST, manifest)
    return manifest


def _fetch(data: DataSet, raw: Path) -> str:
    """Fill ``raw`` through the client; return the commit."""
    hub = _hub(data)
    with environment(raw, offline=False):
        from huggingface_hub import HfApi

        try:
            commit = str(HfApi().dataset_info(hub.repo, revision=hub.revision).sha)
            _load(hub, raw, commit)
        except Exception as error:  # the client raises types of half a dozen libraries
            raise UserError(
                f"data set {data.name}: {hub.repo} at {hub.revision} could not be downloaded "
                f"({type(error).__name__}: {first_line(error)}). Run this on a node with a network, and again "
                "if it was interrupted. The embedded data needs none: --config data=embedded."
            ) from error
    return commit


def read(data: DataSet, raw: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the samples of the downloaded data set: tuples of the columns that the configuration names.

    Raises:
        UserError: not downloaded, or a file has changed since.
    """
    hub = _hub(data)
    again = remedy("download it again", f"{raw}/{MANIFEST}", "--force")
    manifest = read_json(raw / MANIFEST, f"data set {data.name}", again)
    for name, digest in manifest["files"].items():
        if not (raw / name).exists() or sha256(raw / name) != digest:
            raise UserError(f"{raw / name} is not the file that was downloaded; remove {raw} and {again}.")
    with environment(raw, offline=True):
        loaded = _load(hub, raw, manifest["commit"])
        splits = {name: loaded[other] for name, other in hub.splits.items()}
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
        raise UserError(f"data set {data.name}: the reader hub needs a `hub:` entry in the workload's file; write one.")
    return data.hub


def _check_fingerprint(what: str, manifest: dict[str, Any], raw: Path) -> None:
    found, hub = manifest["fingerprint"], manifest["hub"]
    if hub.get("fingerprint") and found != hub["fingerprint"]:
        raise UserError(
            f"{what}: the files of {hub['repo']} have the fingerprint {found}, but the configuration pins "
            f"{hub['fingerprint']}; a file changed or is damaged. Remove {raw} and download again, or pin the new one."
        )
    if not (raw / FIRST).exists():
        write_json(raw / FIRST, manifest)
    first = read_json(raw / FIRST, "the first download", f"remove {raw} and download again")
    if first["hub"] == manifest["hub"] and first["fingerprint"] != found:
        raise UserError(
            f"{what}: {hub['repo']} at {hub['revision']} changed since the first download "
            f"(fingerprint {first['fingerprint']}, now {found}). Set `revision` to the old commit {first['commit']}, "
            f"or remove {raw} to use the new one."
        )


@contextmanager
def environment(raw: Path, *, offline: bool) -> Any:
    """Point the hub client and ``datasets`` at ``raw``; offline, they make no network call."""
    if "$" in str(raw.resolve()):
        raise UserError(
            f"{raw.resolve()} has a $ in its path, which the hub's client takes for a variable; move the project to "
            "a folder without one, or use the embedded data."
        )
    values = {"HF_HOME": str(raw), "HF_HUB_CACHE": str(raw / "hub"), "HF_DATASETS_CACHE": str(raw / "cache")}
    values |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"} if offline else {}
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


def first_line(error: Exception) -> str:
    """Return the first line of a client's error."""
    return str(error).strip().split("\n")[0][:200]
