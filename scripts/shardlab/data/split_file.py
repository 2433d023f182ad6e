"""A split's safetensors file: written part by part, with one part in memory at a time, and read as a memory map."""

import json
import mmap
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from shardlab.data.encoders import Arrays
from shardlab.errors import UserError
from shardlab.files import explained, write_atomic

OFFSETS = "_offsets"
HELD = 2**28
"""Bytes of a split that a training may hold in memory."""


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
            kind, shape = _numpy(entry["dtype"]), tuple(entry["shape"])
            place = 8 + length + entry["data_offsets"][0]
            # An empty part of a file cannot be mapped.
            arrays[name] = np.memmap(path, kind, "r", place, shape) if 0 not in shape else np.empty(shape, kind)
    return arrays


def _numpy(name: str) -> np.dtype[Any]:
    """Return NumPy's type of one in the safetensors format: I32, BOOL, ..."""
    return np.dtype(np.bool_) if name == "BOOL" else np.dtype(f"<{name[0].lower()}{int(name[1:]) // 8}")


def release(arrays: Arrays) -> None:
    """Give back the memory of what was read of a large file's arrays; they are read again when they are used.

    Without this a process that has read a whole file holds all of it, as far as the memory allows.
    """
    if sum(array.nbytes for array in arrays.values()) > HELD:
        for array in arrays.values():
            if isinstance(array, np.memmap):
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def samples(arrays: Arrays) -> int:
    """Return the number of samples in a split's arrays."""
    offsets = next((array for name, array in arrays.items() if name.endswith(OFFSETS)), None)
    return len(offsets) - 1 if offsets is not None else len(next(iter(arrays.values())))


def row(arrays: Arrays, index: int) -> Arrays:
    """Return one sample of a split's arrays."""
    found = {}
    for name, array in arrays.items():
        if (offsets := arrays.get(f"{name}{OFFSETS}")) is not None:
            found[name] = array[offsets[index] : offsets[index + 1]]
        elif not name.endswith(OFFSETS):
            found[name] = array[index]
    return found


class _Column:
    """One array of a split, in a temporary file."""

    def __init__(self, array: NDArray[Any], file: IO[bytes]) -> None:
        self.kind, self.shape, self.file = array.dtype.newbyteorder("<"), array.shape[1:], file
        self.length = 0

    def append(self, array: NDArray[Any]) -> None:
        # The format has C order only, and safetensors' own library writes the memory of other orders as it lies.
        self.file.write(np.ascontiguousarray(array, self.kind).reshape(-1).view(np.uint8).data)
        self.length += len(array)

    def whole(self) -> NDArray[Any]:
        """Return the array, of which only what is read is in memory."""
        shape = (self.length, *self.shape)
        self.file.flush()
        return np.memmap(self.file, self.kind, "r", 0, shape) if 0 not in shape else np.empty(shape, self.kind)


class SplitFile(ExitStack):
    """A split's file that grows by parts, and appears when it is whole.

    Each array grows in a file without a name, of which nothing stays when this process is killed.
    """

    def __init__(self, path: Path, source: str) -> None:
        """``source``: where the parts are from, for errors."""
        super().__init__()
        self.path, self.source = path, source
        self.samples = 0
        self._columns: dict[str, _Column] = {}

    def append(self, part: Arrays) -> None:
        """Append the arrays of consecutive samples.

        Raises:
            UserError: they do not fit each other or the parts before, or cannot be written.
        """
        self._check(part)
        bases = {name: column.length for name, column in self._columns.items()}
        with explained(self.path):
            for name, array in part.items():
                if first := name not in self._columns:
                    file = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115
                    self._columns[name] = _Column(array, self.enter_context(file))
                if name.endswith(OFFSETS):
                    array = (array if first else array[1:]) + bases.get(name.removesuffix(OFFSETS), 0)
                self._columns[name].append(array)
        self.samples += samples(part)

    def _check(self, part: Arrays) -> None:
        for name, array in part.items():
            if array.dtype.kind not in "biuf":
                raise UserError(f"{self.source} gave {name} as {array.dtype}, which safetensors cannot hold.")
            offsets = part.get(f"{name}{OFFSETS}")
            if offsets is not None and (offsets[0], offsets[-1]) != (0, len(array)):
                raise UserError(
                    f"{self.source} gave {name}{OFFSETS} from {offsets[0]} to {offsets[-1]}, not 0 to {len(array)}."
                )
        now = {name: f"{array.dtype.newbyteorder('<')} {array.shape[1:]}" for name, array in part.items()}
        before = {name: f"{column.kind} {column.shape}" for name, column in self._columns.items()}
        if before and now != before:
            raise UserError(f"{self.source} gave {now} after parts of {before}; all parts must be alike.")
        rows = {
            name: len(array) - name.endswith(OFFSETS) for name, array in part.items() if f"{name}{OFFSETS}" not in part
        }
        if len(set(rows.values())) > 1:
            raise UserError(f"{self.source} gave arrays of different numbers of samples: {rows}.")

    def save(self) -> None:
        """Write the file.

        Raises:
            UserError: it could not be written.
        """
        columns = {name: column.whole() for name, column in self._columns.items()}
        write_atomic(self.path, lambda path: save_file(columns, path))
