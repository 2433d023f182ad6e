"""Files of data sets and models of the Hugging Face hub: downloaded on the login node, with a manifest.

What is downloaded is compared with the commit's own digests: the folder has the files of that commit, whatever was
there before.
"""

import dataclasses
import errno
import hashlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from shardlab.data import hub as reader
from shardlab.data.hub import FILES, MANIFEST, cause
from shardlab.data.store import fingerprint
from shardlab.errors import UserError, choices, unknown
from shardlab.files import lock, read_json, sha256, write_json
from shardlab.settings import split_slices
from shardlab.settings.types import DataSet, Model

FIRST = "first_download.json"
"""Copy of the first manifest, which later downloads do not replace (Snakemake removes the manifest itself)."""
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
MODEL_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
OURS = (MANIFEST, FIRST, ".lock", ".cache")
"""Names in a model's folder that are not of the repository; .cache has the client's notes."""
CONNECTIONS = 8
FEW = 100
"""With more files than that, there is no progress bar for each."""


def download(data: DataSet, raw: Path) -> dict[str, Any]:
    """Download the files of the requested configuration and splits into ``raw``, and write the manifest, last.

    Returns the manifest: the commit, the SHA-256 of each file, how datasets reads them, and the fingerprint of all
    files. Interrupted downloads go on with the unfinished files.

    Raises:
        UserError: no network or no such repository, configuration, split or column; or the files do not match the
            fingerprint.
    """
    hub = reader.source_of(data)
    what = f"data set {data.name}"
    with lock(raw / ".lock", "downloaded"):
        (raw / MANIFEST).unlink(missing_ok=True)
        with _explained(
            f"{what}: {hub.repo} at {hub.revision}", "The embedded data needs none: --config data=embedded."
        ):
            commit = _commit("dataset", hub.repo, hub.revision)
            reading = _reading(data, commit)
            names = sorted({name for files in reading["splits"].values() for name in files})
            files = _fetch("dataset", hub.repo, commit, names, raw / FILES)
        splits = reader.samples(data, reading, raw / FILES)
        reader.check_fields(data, reading, raw / FILES)
        for sentence in reader.unused(reading, raw / FILES, splits):
            print(f"note: {sentence}")
        return write_manifest(raw, what, hub.model_dump(), commit, files, reading)


def download_model(model: Model, folder: Path) -> dict[str, Any]:
    """Download a model's files into ``folder``, write the manifest download.json last, and return it.

    Raises:
        UserError: no network or no such repository, or the branch moved since the first download.
    """
    if model.repo is None or model.revision is None:
        raise UserError(f"model {model.name} is a local folder; there is nothing to download.")
    wanted = [*MODEL_FILES, *(MODEL_WEIGHTS if model.pretrained else ())]
    with lock(folder / ".lock", "downloaded"):
        (folder / MANIFEST).unlink(missing_ok=True)
        with _explained(f"model {model.repo} at {model.revision}"):
            commit = _commit("model", model.repo, model.revision)
            files = _fetch("model", model.repo, commit, wanted, folder)
        if "config.json" not in files:
            raise UserError(f"model {model.repo} has no config.json; name a transformers model.")
        if model.pretrained and not any(name.endswith(".safetensors") for name in files):
            raise UserError(f"model {model.repo} has no safetensors weights; convert them, or set pretrained: false.")
        source = {"repo": model.repo, "revision": model.revision}
        return write_manifest(folder, f"model {model.repo}", source, commit, files)


def write_manifest(
    folder: Path,
    what: str,
    hub: dict[str, Any],
    commit: str,
    files: dict[str, str],
    reading: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write and return the manifest of a download: ``hub`` requested it, ``files`` (SHA-256) are read from it.

    Raises:
        UserError: the fingerprint differs from the one that the configuration pins, or the branch moved since the first
            download.
    """
    manifest = {
        "schema_version": 2,
        "hub": hub,
        "commit": commit,
        "files": files,
        "fingerprint": fingerprint(files),
    } | ({"reading": reading} if reading else {})
    if hub.get("fingerprint") and manifest["fingerprint"] != hub["fingerprint"]:
        raise UserError(
            f"{what}: the files of {hub['repo']} have the fingerprint {manifest['fingerprint']}, but the configuration "
            f"pins {hub['fingerprint']}; name the commit that it was made of as `revision`, or pin the new one."
        )
    if not (folder / FIRST).exists():
        write_json(folder / FIRST, manifest)
    first = read_json(folder / FIRST, "the first download", f"remove {folder} and download again")
    if _source(first) == _source(manifest) and _moved(first, manifest):
        raise UserError(
            f"{what}: {hub['repo']} at {hub['revision']} changed since the first download. Set `revision` to the old "
            f"commit {first['commit']}, or remove {folder} to use the new one, {commit}."
        )
    write_json(folder / MANIFEST, manifest)
    return manifest


def _source(manifest: dict[str, Any]) -> list[Any]:
    return [manifest["hub"].get(key) for key in ("repo", "revision", "config")]


def _moved(first: dict[str, Any], manifest: dict[str, Any]) -> bool:
    """Whether what both downloads have differs: the content of a file, or how it is read."""
    old, new = ({**each.get("reading", {}), "splits": None} for each in (first, manifest))
    return old != new or any(first["files"].get(name, digest) != digest for name, digest in manifest["files"].items())


def _commit(kind: str, repo: str, revision: str) -> str:
    reader.libraries()
    from huggingface_hub import HfApi

    return str(HfApi().repo_info(repo, revision=revision, repo_type=kind).sha)


def _reading(data: DataSet, commit: str) -> dict[str, Any]:
    """Return how datasets reads the configuration: builder, its options, features, and the files of the named splits.

    Raises:
        UserError: there is no such configuration, split or column.
    """
    from datasets import load_dataset_builder

    hub = reader.source_of(data)
    try:
        builder = load_dataset_builder(hub.repo, hub.config, revision=commit)
    except ValueError as error:
        raise _config_error(data, commit) or error from None
    place = f"data set {data.name}: {hub.repo}"
    found, prefix = builder.config.data_files or {}, f"hf://datasets/{hub.repo}@{commit}/"
    files = {str(split): [str(file) for file in names] for split, names in found.items()}
    splits = {}
    for name, text in hub.splits.items():
        split = split_slices.parse(text).split
        if split not in files:
            hold = "" if name == "train" else f" To hold out rows of train instead: `holdout: {{{name}: 1000}}`."
            raise UserError(f"{unknown('split', split, files, place)}{hold}")
        if others := [file for file in files[split] if not file.startswith(prefix)]:
            raise UserError(f"{place}: a file of split {split} lies outside of the repository, at {others[0]}.")
        splits[split] = [file.removeprefix(prefix) for file in files[split]]
    if features := builder.info.features:
        for column in hub.columns:
            reader.find(column, list(features), features, place)
    return {
        "builder": builder.name,
        "options": _options(builder.config),
        "features": features.to_dict() if features else None,
        "splits": splits,
    }


def _config_error(data: DataSet, commit: str) -> UserError | None:
    """Return the error for a configuration that the repository does not have, or for none where it has several."""
    from datasets import get_dataset_config_names

    hub = reader.source_of(data)
    names = get_dataset_config_names(hub.repo, revision=commit)
    if hub.config is None and len(names) > 1:
        return UserError(
            f"data set {data.name}: {hub.repo} has several configurations; name one: `config:` {choices(names)}."
        )
    if hub.config is not None and hub.config not in names:
        return unknown("configuration", hub.config, names, f"data set {data.name}: `config:` of {hub.repo}")
    return None


def _options(config: Any) -> dict[str, Any]:
    """Return what the repository sets of a builder's configuration (the separator of CSV, ...)."""
    plain = {"name", "version", "description", "data_dir", "data_files", "features"}
    fields = [field for field in dataclasses.fields(config) if field.name not in plain]
    values = {field.name: getattr(config, field.name) for field in fields}
    defaults = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in fields
    }
    return {name: value for name, value in values.items() if value != defaults[name]}


def _fetch(kind: str, repo: str, commit: str, wanted: list[str], folder: Path) -> dict[str, str]:
    """Download the files that match ``wanted`` and return their SHA-256; remove those that are not of this commit.

    Raises:
        UserError: a file is not the one of the commit.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils.tqdm import disable_progress_bars

    tree = HfApi().list_repo_tree(repo, recursive=True, revision=commit, repo_type=kind)
    files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    exact = set(wanted)
    patterns = [] if kind == "dataset" else wanted
    names = [
        name
        for name in files
        if name in exact or ("/" not in name and any(fnmatch(name, pattern) for pattern in patterns))
    ]
    if kind == "dataset":
        used, there = (Counter(Path(name).suffix for name in each) for each in (names, files))
        kinds = ", ".join(f"{count} of {there[suffix]} {suffix}" for suffix, count in sorted(used.items()))
        print(f"files of the repository that are read: {kinds}")
    if len(names) > FEW:
        disable_progress_bars()
    # Left by a killed call: the client never resumes another process's partial file.
    for part in (folder / ".cache").rglob("*.incomplete"):
        part.unlink()
    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        for _ in pool.map(
            lambda name: hf_hub_download(repo, name, repo_type=kind, revision=commit, local_dir=folder), names
        ):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    for name in names:
        # Without a network the client is content with the file of another commit.
        if not _is(folder / name, files[name]):
            (folder / name).unlink(missing_ok=True)
            raise UserError(
                f"{folder / name} is not the file of commit {commit} of {repo}; run the same command again."
            )
    for path in sorted(folder.rglob("*"), reverse=True):
        name = str(path.relative_to(folder))
        if name.split("/")[0] in OURS:
            continue
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif name not in files or not _is(path, files[name]):
            path.unlink()
    return {name: sha256(folder / name) for name in sorted(names)}


def _is(path: Path, entry: Any) -> bool:
    """Whether a file has the content that a commit lists: its SHA-256 in Git LFS, or Git's object name."""
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    if entry.lfs:
        return bool(sha256(path) == entry.lfs.sha256)
    digest = hashlib.sha1(b"blob %d\0" % entry.size, usedforsecurity=False)
    digest.update(path.read_bytes())
    return bool(digest.hexdigest() == entry.blob_id)


@contextmanager
def _explained(what: str, instead: str = "") -> Iterator[None]:
    """Make one sentence of the client's errors, with what would help.

    Raises:
        UserError: the download failed.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the client raises types of half a dozen libraries
        reason, advice = _diagnosed(error)
        raise UserError(
            f"{what} could not be downloaded: {reason}. {advice}{instead if advice == NETWORK else ''}".strip()
        ) from error


NETWORK = "Run this on a node with a network, and again if it was interrupted. "


def _diagnosed(error: BaseException) -> tuple[str, str]:
    """Return why a download failed, and what would help."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import errors

    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = cause(error)
    if any(isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT) for each in chain) or any(
        words in text for words in ("No space left", "quota exceeded")
    ):
        return text, "Free space or quota there, then run the same command again: it goes on with what is missing."
    if any(isinstance(each, errors.RevisionNotFoundError) for each in chain):
        return "there is no such revision", "Name a commit or a branch of it as `revision`."
    if any(isinstance(each, errors.RepositoryNotFoundError | DatasetNotFoundError) for each in chain):
        return (
            "there is no such repository, or you may not read it",
            "Check its name. If it is private or gated, get access on its page and log in: hf auth login, or HF_TOKEN.",
        )
    if any(isinstance(each, yaml.YAMLError) for each in chain):
        return f"the YAML at the beginning of its README.md cannot be read: {text}", ""
    status = next((each.response.status_code for each in chain if isinstance(each, errors.HfHubHTTPError)), 0)
    broken = (ConnectionError, TimeoutError, errors.LocalEntryNotFoundError)
    # The client's HTTP library has its own types, and the client has changed that library before.
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    if status >= 500 or status == 429 or "TransportError" in names or any(isinstance(each, broken) for each in chain):
        return text, NETWORK
    return text, ""
