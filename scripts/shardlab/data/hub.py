"""Data sets of the Hugging Face hub, read offline from the files that ``hub_download`` put into data/raw.

The manifest download.json says how ``datasets`` reads them, so that the rest of the repository is not needed. They are
streamed: no copy is made of them, and only the named columns are decoded.
"""

import atexit
import csv
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import combinations, count, islice
from pathlib import Path
from typing import Any

import numpy as np

from shardlab.errors import UserError, choices, remedy, unknown
from shardlab.files import read_json, sha256
from shardlab.settings import split_slices
from shardlab.settings.split_slices import SplitSlice
from shardlab.settings.types import DataSet, HubSource

MANIFEST = "download.json"
FILES = "files"
"""Folder of the repository's files, below that of the manifest."""
BATCH = 2**24
"""Bytes of a Parquet file's rows that are in memory at once, about."""


def read(data: DataSet, raw: Path) -> dict[str, "Rows"]:
    """Return the samples of the downloaded data set: tuples of the columns that the configuration names.

    Raises:
        UserError: not downloaded, downloaded with other settings, or a file has changed since.
    """
    hub = source_of(data)
    again = remedy("download it again", f"{raw}/{MANIFEST}", "--force")
    manifest = read_json(raw / MANIFEST, f"data set {data.name}", again)
    if "reading" not in manifest:
        raise UserError(f"{raw} was downloaded by an earlier version; remove it and {again}.")
    settings = hub.model_dump(mode="json", exclude={"fingerprint", "rows", "holdout"})
    if settings != {key: manifest["hub"].get(key) for key in settings}:
        raise UserError(f"{raw} was downloaded with other settings than data set {data.name} has now; {again}.")
    for name, digest in manifest["files"].items():
        path = raw / FILES / name
        if not path.exists() or sha256(path) != digest:
            raise UserError(f"{path} is not the file that was downloaded; remove {raw} and {again}.")
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return samples(data, manifest["reading"], raw / FILES)


def source_of(data: DataSet) -> HubSource:
    """Return the settings of a data set's source."""
    if data.hub is None:
        raise UserError(f"data set {data.name}: the reader hub needs a `hub:` entry in the workload's file; write one.")
    return data.hub


def samples(data: DataSet, reading: dict[str, Any], folder: Path) -> dict[str, "Rows"]:
    """Return the samples of every split. Reads little of the files, but checks what the configuration says about them.

    Raises:
        UserError: a column does not exist, files disagree on the names of classes, two splits have rows in common, or
            train has too few rows for ``holdout``.
    """
    hub = source_of(data)
    splits = {name: Split(data, name, stream, folder) for name, stream in _streams(data, reading, folder).items()}
    for column in hub.columns:
        _check_classes(data, column, reading, folder)
    slices: dict[str, SplitSlice] = {name: split_slices.parse(text) for name, text in hub.splits.items()}
    counted = {each.split for name, each in slices.items() if not each.whole or (name == "train" and hub.holdout)}
    counts = {name: _count(reading, folder, splits[name]) for name in counted}
    ranges = {}
    for name, each in slices.items():
        try:
            # Of a split that is read to its end, wherever that is.
            ranges[name] = each.rows(counts[each.split]) if each.split in counts else range(sys.maxsize)
        except ValueError as error:
            raise UserError(f"data set {data.name}: `splits` has {name}: {each}, but {error}.") from None
    for name, other in combinations(slices, 2):
        if slices[name].split == slices[other].split and split_slices.common(ranges[name], ranges[other]):
            raise UserError(
                f"data set {data.name}: {name} ({slices[name]}) and {other} ({slices[other]}) have rows in common; "
                "name rows of which none is in both."
            )
    drawn = _drawn(data, ranges["train"])
    limits = {str(name): limit for name, limit in hub.rows.items()}
    rows = {name: Rows(splits[each.split], ranges[name], limits.get(name)) for name, each in slices.items()}
    train = rows["train"]
    train.left_out = frozenset[int]().union(*drawn.values())
    return rows | {name: Rows(train.split, train.rows, limits.get(name), kept) for name, kept in drawn.items()}


def _drawn(data: DataSet, train: range) -> dict[str, frozenset[int]]:
    """Draw the rows that are held out of train."""
    sizes = {str(name): size for name, size in source_of(data).holdout.items()}
    total = sum(sizes.values())
    if total >= len(train):
        raise UserError(
            f"data set {data.name}: `holdout` takes {total} rows of train, which has {len(train)}; hold out fewer."
        )
    rows = iter(np.random.default_rng(data.seed).choice(len(train), total, replace=False) + train.start)
    return {name: frozenset(int(row) for row in islice(rows, sizes[name])) for name in sorted(sizes)}


class Split:
    """A split of the repository: its rows, undecoded, from a stream that can be read again; and what decodes them."""

    def __init__(self, data: DataSet, name: str, stream: Any, folder: Path) -> None:
        self.data, self.name, self.stream, self.folder = data, name, stream, folder.resolve()
        features = dict(stream.features or {})
        names = list(features) or list(next(self._rows(stream), {}))
        self.columns = [Column(self, *find(column, names, features, self.place)) for column in source_of(data).columns]

    @property
    def place(self) -> str:
        """The split, for error messages."""
        return f"data set {self.data.name}: split {self.name} of {source_of(self.data).repo}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the named columns of every row."""
        names = list(dict.fromkeys(column.top for column in self.columns))
        stream = self.stream.select_columns(names)
        yield from self._rows(stream.decode(False) if stream.features else stream)

    def _rows(self, stream: Any) -> Iterator[dict[str, Any]]:
        rows = iter(stream)
        for index in count():
            try:
                row = next(rows)
            except StopIteration:
                return
            except Exception as error:  # of the libraries of a dozen file formats
                raise UserError(f"{self.place} cannot be read from row {index} on: {cause(error)}.") from error
            yield row


class Column:
    """A column of a sample, or a field of one (translation.en)."""

    def __init__(self, split: Split, top: str, fields: list[str], feature: Any) -> None:
        self.split, self.top, self.fields, self.feature = split, top, fields, feature
        self.name = ".".join([top, *fields])
        whole = (split.stream.features or {}).get(top)
        self.is_json = bool(fields) and type(whole).__name__ == "Json"
        """Whether rows have JSON text, as datasets reads lines that do not all have the same fields."""

    def value(self, row: dict[str, Any], index: int) -> Any:
        """Return a row's value, decoded.

        Raises:
            UserError: it has no such field, or it cannot be decoded.
        """
        value = row[self.top]
        place = f"{self.split.place}, row {index}, column {self.name}"
        if self.is_json and isinstance(value, str):
            value = json.loads(value)
        for field in self.fields:
            if value is None:
                raise UserError(f"{place}: there is no value (null), so no field {field}.")
            if not isinstance(value, dict) or field not in value:
                fields = f"; it has {choices(value)}" if isinstance(value, dict) else ""
                raise UserError(f"{place}: there is no field {field}{fields}.")
            value = value[field]
        if self.feature is None:
            return value
        path = value.get("path") if isinstance(value, dict) and value.get("bytes", True) is None else None
        if path is not None and not self._is_ours(path):
            raise UserError(f"{place}: its data lies outside of the repository, at {path}.")
        try:
            if type(self.feature[self.name]).__name__ == "Image" and value is not None:
                return _picture(self.feature[self.name], **value)
            return self.feature.decode_example({self.name: value})[self.name]
        except Exception as error:  # of libraries for pictures, sounds, ...
            raise UserError(f"{place}: {sentence(error)}{f' ({path})' if path else ''}.") from error

    def _is_ours(self, path: str) -> bool:
        """Whether a file is one of the repository's, or lies in an archive of them."""
        return Path(path.split("::")[-1]).is_relative_to(self.split.folder)


def _picture(feature: Any, bytes: bytes | None, path: str | None) -> Any:
    """Open a picture, undecoded: datasets' own decoder leaves no trace of 16 bits, or of an orientation.

    Raises:
        ValueError: there is none.
    """
    from datasets.utils.file_utils import xopen
    from PIL import Image

    if bytes is None and path is not None:
        with xopen(path, "rb") as file:
            bytes = file.read()
    if not bytes:
        raise ValueError("the picture has 0 bytes")
    picture = Image.open(io.BytesIO(bytes))
    return picture.convert(feature.mode) if feature.mode not in (None, picture.mode) else picture


class Rows:
    """Samples of a split: can be read again, and are read from the files each time."""

    def __init__(self, split: Split, rows: range, limit: int | None = None, kept: frozenset[int] | None = None) -> None:
        self.split, self.rows, self.limit, self.kept = split, rows, limit, kept
        self.left_out: frozenset[int] = frozenset()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Read from the first row."""
        yield from islice(self._samples(), self.limit)

    def _samples(self) -> Iterator[tuple[Any, ...]]:
        stop = self.rows.stop if self.kept is None else max(self.kept) + 1
        for index, row in enumerate(islice(self.split.rows(), stop)):
            if index in self.rows and index not in self.left_out and (self.kept is None or index in self.kept):
                yield tuple(column.value(row, index) for column in self.split.columns)


def _streams(data: DataSet, reading: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return {split: its rows, streamed by datasets} of the files in ``folder``."""
    libraries()
    from datasets.load import import_main_class

    name = reading["builder"]
    options = dict(reading["options"])
    if name == "csv":
        # pandas takes the first column for the names of rows where each row has a field more than the header.
        options = {"index_col": False} | options
    if name == "parquet":
        first = _parquet_schema(folder / _files(reading)[0]).names
        tops = {column if column in first else column.split(".")[0] for column in source_of(data).columns}
        options |= {
            "batch_size": _batch(folder / _files(reading)[0]),
            "columns": sorted(tops) if tops <= {*first} else None,
        }
    kind = import_main_class(f"datasets.packaged_modules.{name}.{name}")
    # Folders are the classes of all splits together; other files may differ in columns that nobody named.
    if together := _is_of_folders(kind):
        kind = _of_folders(kind)
    elif name == "parquet":
        kind = _in_batches(kind)
    groups = [reading["splits"]] if together else [{split: files} for split, files in reading["splits"].items()]
    streams: dict[str, Any] = {}
    for group in groups:
        try:
            streams |= _stream(partial(kind, **options), group, reading["features"], folder)
        except Exception as error:  # of the libraries of a dozen file formats
            raise UserError(
                f"data set {data.name}: split {', '.join(group)} of {source_of(data).repo} cannot be read as {name}: "
                f"{cause(error)}."
            ) from error
    return streams


def _of_folders(kind: Any) -> Any:
    class Folders(kind):  # type: ignore[misc]
        def _generate_examples(self, files: Any, metadata_files: Any, **others: Any) -> Iterator[Any]:
            # datasets 5.2 takes the folder of an archive for the class of each file in it, and has metadata in a set.
            parts = [(None if inside else original, inside, each) for original, inside, each in files]
            return iter(super()._generate_examples(parts, sorted(metadata_files, key=str), **others))

    return Folders


def _in_batches(kind: Any) -> Any:
    from datasets.builder import Key

    class Parquet(kind):  # type: ignore[misc]
        def _generate_tables(self, files: list[str], row_groups_list: list[Any]) -> Iterator[Any]:
            # datasets 5.2 has whole row groups in memory, of which a file may be one, and some that come next.
            arrow, parquet, config = import_module("pyarrow"), import_module("pyarrow.parquet"), self.config
            for index, (path, groups) in enumerate(zip(files, row_groups_list, strict=True)):
                with parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**16) as file:
                    batches = file.iter_batches(config.batch_size, groups, config.columns, use_threads=False)
                    for number, batch in enumerate(batches):
                        yield Key(index, number), self._cast_table(arrow.Table.from_batches([batch]))

    return Parquet


def _stream(kind: Callable[..., Any], splits: dict[str, list[str]], features: Any, folder: Path) -> dict[str, Any]:
    from datasets import Features
    from datasets.data_files import DataFilesDict, DataFilesList

    files = {
        split: DataFilesList([str((folder / file).resolve()) for file in names], [("",)] * len(names))
        for split, names in splits.items()
    }
    # Its constructor creates a folder and a lock in the cache; streaming does not use it.
    with tempfile.TemporaryDirectory() as cache:
        builder = kind(cache_dir=cache, data_files=DataFilesDict(files))
    if features:
        builder.info.features = Features.from_dict(features)
    return dict(builder.as_streaming_dataset())


def find(name: str, names: list[str], features: Any, place: str) -> tuple[str, list[str], Any]:
    """Return the column that a name begins with, the fields in it, and the features that decode the value.

    The features are None where they are not known before the rows are read.

    Raises:
        UserError: there is no such column or field.
    """
    from datasets import Features

    top, *fields = [name] if name in names else name.split(".")
    if names and top not in names:
        raise unknown("column", name, names, place)
    feature = features.get(top)
    for field in fields:
        if isinstance(feature, dict) and field not in feature:
            known = [name.removesuffix(field) + each for each in feature]
            raise unknown("column", name, known, place)
        feature = feature[field] if isinstance(feature, dict) else None
    return top, fields, None if feature is None else Features({name: feature})


def _check_classes(data: DataSet, name: str, reading: dict[str, Any], folder: Path) -> None:
    """Check that all files number the classes of a column by the same names: datasets takes those of the first."""
    first: tuple[str, Any] | None = None
    for file in _files(reading):
        features = _features(reading["builder"], folder / file) or {}
        top, *fields = [name] if name in features else name.split(".")
        feature: Any = features.get(top)
        for field in fields:
            feature = feature.get(field) if isinstance(feature, dict) else None
        names = getattr(feature, "names", None)
        if names is None:
            continue
        first = first or (file, names)
        if names != first[1]:
            raise UserError(
                f"data set {data.name}: column {name} has the classes {_short(first[1])} in {first[0]}, but "
                f"{_short(names)} in {file}, so that a number means another class there; name splits that agree."
            )


def _short(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f", ... ({len(names)})" if len(names) > 8 else "")


def _features(builder: str, path: Path) -> Any:
    """Return the features that a Parquet or Arrow file declares; None for other files."""
    from datasets import Features

    if builder not in SCHEMAS:
        return None
    try:
        return Features.from_arrow_schema(SCHEMAS[builder](path))
    except UserError:
        raise
    except Exception as error:  # pyarrow's, and those of wrong metadata
        raise UserError(f"{path} cannot be read: {cause(error)}.") from error


def _parquet_schema(path: Path) -> Any:
    try:
        return import_module("pyarrow.parquet").read_schema(path)
    except Exception as error:  # pyarrow's
        raise UserError(f"{path} cannot be read as Parquet: {sentence(error)}.") from error


def _batch(path: Path) -> int:
    """Return how many rows of a Parquet file have about ``BATCH`` bytes."""
    file = import_module("pyarrow.parquet").read_metadata(path)
    size = sum(file.row_group(i).total_byte_size for i in range(file.num_row_groups))
    return max(1, min(1000, BATCH * file.num_rows // max(1, size)))


def _arrow_schema(path: Path) -> Any:
    arrow = import_module("pyarrow")
    with arrow.memory_map(str(path)) as file:
        try:
            return arrow.ipc.open_stream(file).schema
        except arrow.ArrowInvalid:
            return arrow.ipc.open_file(file).schema


SCHEMAS: dict[str, Callable[[Path], Any]] = {"parquet": _parquet_schema, "arrow": _arrow_schema}


def _files(reading: dict[str, Any]) -> list[str]:
    return [file for names in reading["splits"].values() for file in names]


def check_fields(data: DataSet, reading: dict[str, Any], folder: Path) -> None:
    """Check that rows of CSV have as many fields as the header: pandas drops what is more, and fills up what is less.

    Where the repository says more of its files than separators, quotes and names, that is pandas' matter.

    Raises:
        UserError: one has not.
    """
    from datasets.utils.file_utils import xopen

    is_csv = reading["builder"] == "csv"
    options = reading["options"] if is_csv else {}
    dialect = {key: value for key, value in options.items() if key in DIALECT}
    separator = options.get("sep", ",")
    if len(separator) > 1 or options.keys() - {*DIALECT, "sep", "delimiter", "names", "column_names", "encoding"}:
        return
    names = options.get("column_names") or options.get("names")
    csv.field_size_limit(sys.maxsize)
    for path in _inside(folder, [file for file in _files(reading) if is_csv or Path(file).name == "metadata.csv"]):
        with xopen(path, "r", newline="", encoding=options.get("encoding"), errors="replace") as file:
            rows = csv.reader(file, delimiter=separator, **dialect)
            expected = len(names or next(rows, []))
            for row in rows:
                if len(row) != expected and any(map(str.strip, row)):
                    raise UserError(
                        f"data set {data.name}: {path} has {len(row)} fields in line {rows.line_num}, but {expected} "
                        "columns; name a repository whose rows have a field for each column."
                    )


DIALECT = ("quotechar", "escapechar", "doublequote", "skipinitialspace")
"""Of a CSV file: words of pandas and of Python's csv."""


def unused(reading: dict[str, Any], folder: Path, splits: dict[str, "Rows"]) -> Iterator[str]:
    """Yield a sentence for each split of pictures or sounds whose metadata has fewer rows than there are files."""
    from datasets.load import import_main_class

    kind = import_main_class(f"datasets.packaged_modules.{reading['builder']}.{reading['builder']}")
    if not _is_of_folders(kind):
        return
    for split in {rows.split.name: rows.split for rows in splits.values()}.values():
        inside = [*_inside(folder, reading["splits"][split.name])]
        there = sum(path.split("::")[0].lower().endswith(tuple(kind.EXTENSIONS)) for path in inside)
        if (used := _count(reading, folder, split)) < there:
            yield f"split {split.name}: {used} of {there} files have a row of metadata; the others are not read"


def _is_of_folders(kind: Any) -> bool:
    return any(base.__name__ == "FolderBasedBuilder" for base in kind.__mro__)


def _inside(folder: Path, names: list[str]) -> Iterator[str]:
    """Yield the path of each file, as datasets opens it, also of those in archives."""
    from datasets.download.streaming_download_manager import StreamingDownloadManager

    manager = StreamingDownloadManager()
    for name in names:
        yield from manager.iter_files(manager.extract(str(folder / name)))


def _count(reading: dict[str, Any], folder: Path, split: Split) -> int:
    """Return the number of a split's rows; other files than Parquet's are read for it."""
    if reading["builder"] == "parquet":
        read_metadata = import_module("pyarrow.parquet").read_metadata
        return sum(read_metadata(folder / file).num_rows for file in reading["splits"][split.name])
    return sum(1 for _ in split.rows())


def cause(error: BaseException) -> str:
    """Return what the error of a library that wraps others goes back to, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return sentence(error)


def sentence(error: BaseException) -> str:
    """Return an error in one line, without addresses of objects."""
    if isinstance(error, StopIteration):  # datasets looks for the columns in the first row
        return "a file has no rows"
    text = re.sub(r" ?<[\w.]+ object at 0x[0-9a-f]+>", "", " ".join(str(error).split())[:300].rstrip("."))
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
