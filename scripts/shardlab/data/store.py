"""The prepared data set: one safetensors file per split, and dataset.json, written last."""

import hashlib
import platform
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.data import SPLITS
from shardlab.data.encoders import Arrays
from shardlab.data.split_file import SplitFile, row, samples
from shardlab.data.text import Text
from shardlab.errors import UserError, remedy
from shardlab.files import lock, read_json, sha256, write_atomic, write_json
from shardlab.settings.run_identity import difference
from shardlab.settings.types import DataSet


def write(
    folder: Path,
    data: DataSet,
    splits: Mapping[str, Iterable[Arrays]],
    text: Text | None,
    counts: Mapping[str, Counter[str]],
) -> dict[str, Any]:
    """Write the splits, part by part, and the manifest dataset.json; return the manifest.

    The manifest has the settings, the samples and SHA-256 of each file, the fingerprint of all files, and per split
    what the encoder counted and how many samples of validation and test are also in train.

    Raises:
        UserError: a split is empty, the encoder's parts do not fit each other, or a file could not be written.
    """
    with lock(folder / ".lock", "prepared"):
        # A manifest next to half-replaced files would mark them as complete.
        (folder / "dataset.json").unlink(missing_ok=True)
        for left in folder.glob(".*.tmp"):  # by a killed call
            left.unlink()
        names, written = [], {}
        for split in SPLITS:
            names.append(f"{split}.safetensors")
            digests = _write_split(folder / names[-1], data, split, splits[split])
            written[split] = len(digests)
            if split == "train":
                of_train = digests
            elif common := np.isin(digests, of_train).sum():
                counts[split]["samples that are also in train"] = int(common)
        if text is not None:
            names.append("tokenizer.json")
            write_atomic(folder / names[-1], lambda path: text.tokenizer.save(str(path)))
        files = {name: sha256(folder / name) for name in names}
        manifest = {
            "schema_version": 1,
            "data": data.model_dump(),
            "samples": written,
            "counts": {split: dict(+counts[split]) for split in SPLITS},
            "files": files,
            "fingerprint": fingerprint(files),
            "special_tokens": text.special if text else None,
            "python": platform.python_version(),
        }
        write_json(folder / "dataset.json", manifest)
    return manifest


def _write_split(path: Path, data: DataSet, split: str, parts: Iterable[Arrays]) -> NDArray[np.uint64]:
    """Write a split's file; return a digest of each sample: 8 bytes of memory per sample."""
    digests = array("Q")
    with SplitFile(path, f"data set {data.name}, split {split}: encoder {data.task}") as file:
        for part in parts:
            file.append(part)
            digests.extend(_digest(row(part, index)) for index in range(samples(part)))
        if not file.samples:
            raise UserError(
                f"data set {data.name}: the split {split} has no samples after encoding; request more rows."
            )
        file.save()
    return np.frombuffer(digests, np.uint64)


def _digest(sample: Arrays) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for values in sample.values():
        digest.update(values.nbytes.to_bytes(8, "little"))
        digest.update(values.tobytes())
    return int.from_bytes(digest.digest(), "little")


def fingerprint(files: dict[str, str]) -> str:
    """Return the SHA-256 over (name, SHA-256) of the files, sorted by name."""
    text = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint_of(folder: Path) -> str:
    """Return the fingerprint in the manifest of a prepared data set, whose files ``verify`` has checked.

    Raises:
        UserError: the manifest is missing or damaged.
    """
    return str(_manifest(folder)["fingerprint"])


def samples_in(folder: Path, split: str) -> int:
    """Return the number of samples of a split, from the manifest of a prepared data set.

    Raises:
        UserError: the manifest is missing or damaged.
    """
    return int(_manifest(folder)["samples"][split])


def verify(folder: Path, data: DataSet) -> str:
    """Check that the prepared data set is complete and the requested one; return its fingerprint.

    Raises:
        UserError: a file is missing or damaged, or it was prepared with other settings.
    """
    again = remedy("recreate it", folder / "dataset.json", "--force")
    manifest = _manifest(folder)
    if manifest["data"] != data.model_dump(mode="json"):
        key = difference(data.model_dump(mode="json"), manifest["data"])
        raise UserError(
            f"{folder} was prepared with a different {key} than this run needs; call snakemake for the run, which "
            "prepares what it needs, or resolve its run.json again."
        )
    for name, digest in manifest["files"].items():
        path = folder / name
        if not path.exists():
            raise UserError(f"{path} is missing; {again}.")
        if sha256(path) != digest:
            raise UserError(f"{path} is damaged: its SHA-256 is not the one in dataset.json; {again}.")
    return str(manifest["fingerprint"])


def is_prepared(folder: Path, data: DataSet) -> bool:
    """Return whether this data set was prepared there, without checking its files."""
    try:
        return bool(_manifest(folder)["data"] == data.model_dump(mode="json"))
    except UserError:
        return False


def _manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a prepared data set, if it is as ``write`` wrote it."""
    path = folder / "dataset.json"
    again = remedy("recreate it", path, "--force")
    manifest = read_json(path, "data set", again)
    if not isinstance(manifest, dict) or manifest.get("fingerprint") != fingerprint(dict(manifest.get("files", {}))):
        raise UserError(f"{path} is damaged or was edited; {again}.")
    return manifest
