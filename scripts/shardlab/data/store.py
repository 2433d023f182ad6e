"""The prepared data set: one safetensors file per split, and dataset.json, written last."""

import hashlib
import json
import platform
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from shardlab.data import SPLITS
from shardlab.data.encoders import Arrays, Text
from shardlab.errors import UserError, remedy
from shardlab.files import read_json, sha256, write_atomic, write_json
from shardlab.settings.run_identity import difference
from shardlab.settings.types import DataSet

DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1"}
"""Name in the safetensors format: NumPy's."""


def write(folder: Path, data: DataSet, splits: dict[str, Arrays], text: Text | None) -> dict[str, Any]:
    """Write the splits and the manifest dataset.json; return the manifest.

    The manifest has the settings, the samples and SHA-256 of each file, and the fingerprint of all files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # A manifest next to half-replaced files would mark them as complete.
    (folder / "dataset.json").unlink(missing_ok=True)
    names = []
    for split in SPLITS:
        names.append(f"{split}.safetensors")
        write_atomic(folder / names[-1], partial(save_file, splits[split]))
    if text is not None:
        names.append("tokenizer.json")
        write_atomic(folder / names[-1], lambda path: text.tokenizer.save(str(path)))
    files = {name: sha256(folder / name) for name in names}
    manifest = {
        "schema_version": 1,
        "data": data.model_dump(),
        "samples": {split: samples(splits[split]) for split in SPLITS},
        "files": files,
        "fingerprint": fingerprint(files),
        "special_tokens": text.special if text else None,
        "python": platform.python_version(),
    }
    write_json(folder / "dataset.json", manifest)
    return manifest


def open_arrays(path: Path) -> Arrays:
    """Memory-map the arrays of a safetensors file: only what is indexed is read, however large the file is.

    PyTorch's own reader maps the file as writable, for which the system reserves as much memory as the file's size.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            kind, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
            place = 8 + length + entry["data_offsets"][0]
            # An empty part of a file cannot be mapped.
            arrays[name] = np.memmap(path, kind, "r", place, shape) if 0 not in shape else np.empty(shape, kind)
    return arrays


def samples(arrays: Arrays) -> int:
    """Return the number of samples in a split's arrays."""
    offsets = next((array for name, array in arrays.items() if name.endswith("_offsets")), None)
    return len(offsets) - 1 if offsets is not None else len(next(iter(arrays.values())))


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
            f"{folder} was prepared with another {key} than this run needs; call snakemake for the run, which "
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
    try:
        files = manifest["files"]
        whole = {f"{split}.safetensors" for split in SPLITS} <= files.keys() and isinstance(manifest["data"], dict)
        if whole and manifest["fingerprint"] == fingerprint(files):
            return dict(manifest)
    except (AttributeError, KeyError, TypeError):
        pass
    raise UserError(f"{path} is damaged or was edited; {again}.")
