"""Data sets of the Hugging Face hub, read offline from what ``hub_download`` made of them."""

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.errors import UserError, remedy
from shardlab.files import read_json, sha256
from shardlab.settings.types import DataSet, HubSource

MANIFEST = "download.json"
VERSION = 4
"""Version of the format of downloads."""


def read(data: DataSet, raw: Path) -> dict[str, "Rows"]:
    """Return the samples of the downloaded data set: tuples of the columns that the configuration names.

    Raises:
        UserError: not downloaded, downloaded with other settings, or a file has changed since.
    """
    hub = source_of(data)
    again = remedy("download it again", f"{raw}/{MANIFEST}", "--force")
    manifest = read_json(raw / MANIFEST, f"data set {data.name}", again)
    if manifest["schema_version"] != VERSION:
        raise UserError(f"{raw} is a download of another version of this project; {again}.")
    if of_files(hub.model_dump(mode="json")) != of_files(manifest["hub"]):
        raise UserError(f"{raw} was downloaded with other settings than data set {data.name} has now; {again}.")
    for name, digest in manifest["rows"].items():
        if not (raw / name).exists() or sha256(raw / name) != digest:
            raise UserError(f"{raw / name} is not the file that was downloaded; remove {raw} and {again}.")
    return samples(data, raw, manifest["parts"])


def source_of(data: DataSet) -> HubSource:
    """Return the settings of a data set's source."""
    if data.hub is None:
        raise UserError(f"data set {data.name}: the reader hub needs a `hub:` entry in the workload's file; write one.")
    return data.hub


def of_files(hub: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a source that decide what is in its files."""
    return {key: value for key, value in hub.items() if key not in ("rows", "holdout")}


def samples(data: DataSet, raw: Path, parts: dict[str, tuple[str, int, int]]) -> dict[str, "Rows"]:
    """Return the samples of every split. ``parts``: for each split of ``splits`` the repository's, and the first row
    and the end of its rows there.

    Raises:
        UserError: train has too few rows for ``holdout``.
    """
    hub = source_of(data)
    indices = {name: np.arange(start, stop) for name, (_, start, stop) in parts.items()}
    origin = {name: part[0] for name, part in parts.items()}
    sizes = {str(name): hub.holdout[name] for name in sorted(hub.holdout)}
    if (total := sum(sizes.values())) >= (count := len(indices["train"])):
        raise UserError(
            f"data set {data.name}: `holdout` takes {total} rows of train, which has {count}; hold out fewer."
        )
    drawn = np.random.default_rng(data.seed).choice(count, total, replace=False) + parts["train"][1]
    indices["train"] = np.setdiff1d(indices["train"], drawn)
    for name, size in sizes.items():
        indices[name], drawn, origin[name] = np.sort(drawn[:size]), drawn[size:], origin["train"]
    limits = {str(name): limit for name, limit in hub.rows.items()}
    return {name: Rows(data, raw, origin[name], kept[: limits.get(name)]) for name, kept in indices.items()}


class Rows:
    """Samples of a split: can be read again, and are read from the files each time."""

    def __init__(self, data: DataSet, raw: Path, split: str, indices: NDArray[np.integer]) -> None:
        """``split``: the repository's, of which the rows ``indices``, in ascending order, are the samples."""
        libraries()
        from datasets import load_from_disk

        self.indices = indices
        self.place = f"data set {data.name}: split {split} of {source_of(data).repo}"
        self.rows: Any = load_from_disk(str(raw / split)).select(indices)
        self.paths = [path_of(column, self.rows.features) for column in source_of(data).columns]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.indices)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Read from the first row.

        Raises:
            UserError: a value cannot be decoded.
        """
        rows = iter(self.rows)
        for index in self.indices:
            try:
                row = next(rows)
            except Exception as error:  # of libraries for pictures, sounds, ...
                raise UserError(f"{self.place}, row {index}: {sentence(error)}.") from error
            yield tuple(field(row, path) for path in self.paths)


def path_of(column: str, features: Any) -> list[str]:
    """Return the names that lead to a column or, as translation.en, to a field of one."""
    return [column] if column in features else column.split(".")


def field(value: Any, path: list[str]) -> Any:
    """Return what is at a path of dictionaries, None where one has no such field."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def sentence(error: BaseException) -> str:
    """Return an error in one line, without addresses of objects."""
    text = re.sub(r" ?<[\w.]+ object at 0x[0-9a-f]+>", "", " ".join(str(error).split())[:1000].rstrip("."))
    return text if text and not isinstance(error, KeyError) else f"{type(error).__name__}: {text}".rstrip(": ")


def libraries() -> None:
    """Prepare the first import of ``datasets`` and the hub's client: they take only the login from the user's home.

    What they keep beside the data (locks, caches) goes to a temporary folder.
    """
    if "huggingface_hub" in sys.modules:
        return
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{caches}/huggingface")
    os.environ.setdefault("HF_TOKEN_PATH", f"{home}/token")
    for name in [name for name in os.environ if re.fullmatch(r"(HF|HUGGINGFACE)_\w+_(CACHE|DATASETS_PATH)", name)]:
        del os.environ[name]
    os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="shardlab-hub-")
    atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)
