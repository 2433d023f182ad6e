"""Data sets and models of the Hugging Face hub: downloaded on the login node by its own libraries, with a manifest.

Of a data set, the named columns stay, as the library ``datasets`` saves a split of the repository.
"""

import copy
import glob
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from shardlab.data import hub as reader
from shardlab.data.hub import MANIFEST, VERSION, sentence
from shardlab.data.store import fingerprint
from shardlab.errors import UserError, unknown
from shardlab.files import lock, read_json, sha256, write_json
from shardlab.settings.types import DataSet, Model

FIRST = "first_download.json"
"""Manifest of the first download with these settings (Snakemake removes the manifest itself)."""
CACHE = ".cache"
"""The client's folder: an interrupted download goes on from what is there."""
OURS = (MANIFEST, FIRST, CACHE, ".lock")
"""Names in a folder that are not of the repository."""
MODEL_FILES = ["config.json", "generation_config.json", "tokenizer*.json", "special_tokens_map.json"]
MODEL_FILES += ["chat_template.jinja"]
MODEL_WEIGHTS = ["*.safetensors", "*.safetensors.index.json"]
HELP = (
    "Without a network, run this on a node that has one; for a private or gated repository, log in (hf auth login, or "
    "HF_TOKEN). An interrupted download goes on with the same command."
)
ROWS = 1000
"""Rows of a Parquet file that are read at once."""
SHOWN = 8
"""Names of classes in a sentence."""
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar")


def download(data: DataSet, raw: Path) -> dict[str, Any]:
    """Download the requested configuration and splits, write their rows into ``raw``, and the manifest, last.

    Returns the manifest: the commit, the repository's ``files`` with their SHA-256, the fingerprint of all, the files
    of ``rows`` with theirs, and which rows each split has (``parts``).

    Raises:
        UserError: no network or no such repository, configuration, split or column; or a file cannot be read.
    """
    hub = reader.source_of(data)
    what = f"data set {data.name}"
    with lock(raw / ".lock", "downloaded"):
        (raw / MANIFEST).unlink(missing_ok=True)
        with _explained(f"{what}: {hub.repo} at {hub.revision}", "--config data=embedded needs no download."):
            commit = _commit("dataset", hub.repo, hub.revision)
            if kept := _kept(data, raw, commit):
                reader.samples(data, raw, kept["parts"])
                return _write_manifest(raw, what, kept | {"hub": hub.model_dump(mode="json")})
            builder = _builder(data, commit)
            splits = _files(data, builder, commit)
            wanted = [name for names in splits.values() for name in names]
            folder, files = _snapshot("dataset", hub.repo, commit, wanted, cache_dir=raw / CACHE)
        whole = (raw / CACHE).resolve()
        with tempfile.TemporaryDirectory(dir=whole) as place, _plain(whole) as cache:
            here, work = (cache / path.relative_to(whole) for path in (folder.resolve(), Path(place)))
            tables = _tables(data, builder, here, splits, work)
            parts = _parts(data, {split: len(table) for split, table in tables.items()})
            _remove_others(raw)
            for split, table in tables.items():
                table.save_to_disk(raw / split)
        saved = sorted(path for split in tables for path in (raw / split).iterdir())
        rows = {str(path.relative_to(raw)): sha256(path) for path in saved}
        reader.samples(data, raw, parts)
        manifest = _manifest(hub.model_dump(mode="json"), commit, files) | {"rows": rows, "parts": parts}
        _write_manifest(raw, what, manifest)
        shutil.rmtree(raw / CACHE)
        return manifest


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
        note = folder / CACHE / "commit"
        with _explained(f"model {model.repo} at {model.revision}"):
            commit = _commit("model", model.repo, model.revision)
            if not note.exists() or note.read_text() != commit:
                # The client leaves files that another commit had, and without a network takes them for this one's.
                _remove_others(folder)
                shutil.rmtree(folder / CACHE, ignore_errors=True)
                note.parent.mkdir()
                note.write_text(commit)
            for part in (folder / CACHE).rglob("*.incomplete"):  # of a killed call, which the client never goes on with
                part.unlink()
            _, files = _snapshot("model", model.repo, commit, wanted, local_dir=folder)
        if "config.json" not in files:
            raise UserError(f"model {model.repo} has no config.json; name a transformers model, no adapter.")
        if model.pretrained and not any(name.endswith(".safetensors") for name in files):
            raise UserError(f"model {model.repo} has no safetensors weights; convert them, or set pretrained: false.")
        source = {"repo": model.repo, "revision": model.revision}
        return _write_manifest(folder, f"model {model.repo}", _manifest(source, commit, files))


def _manifest(hub: dict[str, Any], commit: str, files: dict[str, str]) -> dict[str, Any]:
    return {"schema_version": VERSION, "hub": hub, "commit": commit, "files": files, "fingerprint": fingerprint(files)}


def _write_manifest(folder: Path, what: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Write and return the manifest of a download.

    Raises:
        UserError: the branch moved since the first download.
    """
    hub = manifest["hub"]
    first = _first(folder)
    same = reader.of_files(first.get("hub", {})) == reader.of_files(hub)
    if same and any(first["files"].get(name, digest) != digest for name, digest in manifest["files"].items()):
        raise UserError(
            f"{what}: {hub['repo']} at {hub['revision']} changed since the first download. Set `revision` to the old "
            f"commit {first['commit']}, or remove {folder} to use the new one, {manifest['commit']}."
        )
    if not same or first["schema_version"] != VERSION:
        write_json(folder / FIRST, manifest)
    write_json(folder / MANIFEST, manifest)
    return manifest


def _first(folder: Path) -> dict[str, Any]:
    if not (folder / FIRST).exists():
        return {}
    return dict(read_json(folder / FIRST, "the first download", f"remove {folder} and download again"))


def _kept(data: DataSet, raw: Path, commit: str) -> dict[str, Any] | None:
    """Return the manifest of an earlier download whose rows are those of the commit and still whole; None if not."""
    first, hub = _first(raw), reader.source_of(data).model_dump(mode="json")
    if (first.get("schema_version"), first.get("commit")) != (VERSION, commit):
        return None
    if reader.of_files(first["hub"]) != reader.of_files(hub):
        return None
    paths = {raw / name: digest for name, digest in first.get("rows", {"": None}).items()}
    return first if all(path.is_file() and sha256(path) == digest for path, digest in paths.items()) else None


def _remove_others(folder: Path) -> None:
    """Remove all but what belongs to a folder of downloads: the files of another commit."""
    for path in folder.iterdir():
        if path.name not in OURS:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _commit(kind: str, repo: str, revision: str) -> str:
    reader.libraries()
    from huggingface_hub import HfApi

    return str(HfApi().repo_info(repo, revision=revision, repo_type=kind).sha)


def _snapshot(kind: str, repo: str, commit: str, wanted: list[str], **place: Any) -> tuple[Path, dict[str, str]]:
    """Download the files that match ``wanted``; return their folder, and the SHA-256 of each.

    Raises:
        UserError: one is missing afterwards.
    """
    from huggingface_hub import HfApi, snapshot_download

    there = HfApi().list_repo_files(repo, revision=commit, repo_type=kind)
    if kind == "dataset":
        names = sorted({*wanted})
        print(f"{len(names)} of the repository's {len(there)} files are read")
    else:
        tops = sorted(name for name in there if "/" not in name)
        names = [name for name in tops if any(fnmatch(name, pattern) for pattern in wanted)]
    exact = [glob.escape(name) for name in names]
    folder = Path(snapshot_download(repo, repo_type=kind, revision=commit, allow_patterns=exact, **place))
    for name in names:  # without a network the client is content with what is there
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} of {repo} was not downloaded; run the same command again.")
    return folder, {name: sha256(folder / name) for name in names}


def _builder(data: DataSet, commit: str) -> Any:
    from datasets import load_dataset_builder

    hub = reader.source_of(data)
    with tempfile.TemporaryDirectory() as cache:
        try:
            return load_dataset_builder(hub.repo, hub.config, revision=commit, cache_dir=cache)
        except ValueError as error:  # its sentence has the names of the configurations
            if "onfig" not in str(error):
                raise
            raise UserError(f"data set {data.name}: `config:` of {hub.repo}: {sentence(error)}.") from None


def _files(data: DataSet, builder: Any, commit: str) -> dict[str, list[str]]:
    """Return the files of each split that the configuration names.

    Raises:
        UserError: there is no such split or column.
    """
    hub = reader.source_of(data)
    place, prefix = f"data set {data.name}: {hub.repo}", f"hf://datasets/{hub.repo}@{commit}/"
    found, splits = builder.config.data_files or {}, {}
    for name, text in hub.splits.items():
        split = text.partition("[")[0]
        if split not in found:
            hold = "" if name == "train" else f" To hold out rows of train instead: `holdout: {{{name}: 1000}}`."
            raise UserError(f"{unknown('split', split, map(str, found), place)}{hold}")
        files = [str(file) for file in found[split]]
        if others := [file for file in files if not file.startswith(prefix)]:
            raise UserError(f"{place}: a file of split {split} lies outside of the repository, at {others[0]}.")
        splits[split] = [file.removeprefix(prefix) for file in files]
        if _of_folders(builder) and (archives := [file for file in splits[split] if file.lower().endswith(ARCHIVES)]):
            raise UserError(
                f"{place}: {archives[0]} is an archive, and pictures in archives are not read; unpack it into a "
                "repository of your own, or read it with a file in scripts/shardlab/data."
            )
    if features := builder.info.features:
        _check_columns(features, hub.columns, place)
    return splits


def _of_folders(builder: Any) -> bool:
    """Return whether files are samples, and their folders classes."""
    return any(kind.__name__ == "FolderBasedBuilder" for kind in type(builder).__mro__)


@contextmanager
def _plain(folder: Path) -> Iterator[Path]:
    """Give a folder an address in which datasets, which expands $HOME in any path, finds no variable."""
    with tempfile.TemporaryDirectory() as place:
        link = Path(place) / "cache"
        link.symlink_to(folder)
        yield link


def _tables(data: DataSet, builder: Any, folder: Path, splits: dict[str, list[str]], place: Path) -> dict[str, Any]:
    """Return the named columns of every split, read by datasets.

    Raises:
        UserError: a file cannot be read, or there is no such column; files disagree on the names of classes; a row of
            CSV has more fields than the header; a picture lies outside of the repository.
    """
    import pyarrow.parquet as pq
    from datasets import Features
    from datasets.data_files import DataFilesDict, DataFilesList

    hub = reader.source_of(data)
    local = {split: [str(folder / name) for name in names] for split, names in splits.items()}
    if builder.name == "csv":
        # pandas takes the first column for the names of rows where each row has a field more than the header.
        builder.config.index_col = False
    elif builder.name == "parquet":
        # The size of the first group of rows, which is the default, can be 0.
        builder.config.batch_size = ROWS
    # Folders are the classes of all splits together; other files may differ in columns that nobody named.
    together = _of_folders(builder)
    groups = [[*local]] if together else [[split] for split in local]
    tables: dict[str, Any] = {}
    for number, group in enumerate(groups):
        part = copy.deepcopy(builder)
        part.config.data_files = DataFilesDict({split: DataFilesList(local[split], []) for split in group})
        if together:
            part.__class__ = _with_sorted_metadata(type(part))
        where = f"data set {data.name}: split {', '.join(group)} of {hub.repo}"
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Length of header")  # of pandas, which drops fields that are too many
                part.download_and_prepare(str(place / str(number)), verification_mode="no_checks")
            tables |= part.as_dataset()
        except Exception as error:  # of the libraries of a dozen file formats
            raise UserError(f"{where} cannot be read as {builder.name}: {cause(error)}.") from error
    for split, table in tables.items():
        where = f"data set {data.name}: split {split} of {hub.repo}"
        there = sum(name.lower().endswith(tuple(part.EXTENSIONS)) for name in local[split]) if together else 0
        if len(table) < there:
            print(f"note: split {split}: {len(table)} of {there} files have a row of metadata; the others are not read")
        _check_columns(table.features, hub.columns, where)
        _check_places(table, folder, where)
        tops = dict.fromkeys(reader.path_of(column, table.features)[0] for column in hub.columns)
        tables[split] = table.select_columns([*tops])
    if builder.name == "parquet":  # of whose files datasets takes the first one's names
        schemas = {name: folder / name for names in splits.values() for name in names}
        features = {name: Features.from_arrow_schema(pq.read_schema(path)) for name, path in schemas.items()}
    else:
        features = {split: table.features for split, table in tables.items()}
    _check_classes(data, features)
    return tables


def _with_sorted_metadata(kind: Any) -> Any:
    class Folders(kind):  # type: ignore[misc]
        def _generate_examples(self, files: Any, metadata_files: Any, **others: Any) -> Iterator[Any]:
            # datasets 5.2 has them in a set, whose order is another one in each process.
            return iter(super()._generate_examples(files, sorted(metadata_files, key=str), **others))

    return Folders


def _check_places(table: Any, folder: Path, where: str) -> None:
    """Check that pictures whose files lie beside the rows, which are copied into them, are of the repository.

    Raises:
        UserError: one is not.
    """
    for name in (name for name, feature in table.features.items() if type(feature).__name__ == "Image"):
        for chunk in table.data.column(name).chunks:
            for path in chunk.field("path").filter(chunk.field("bytes").is_null()).drop_null().to_pylist():
                if not Path(path.split("::")[-1]).is_relative_to(folder):
                    raise UserError(f"{where}: the data of column {name} lies outside of the repository, at {path}.")


def _check_columns(features: Any, columns: list[str], place: str) -> None:
    """Check that there are the columns that the configuration names.

    Raises:
        UserError: one is missing; fields of JSON lines that differ, which have no schema, may be.
    """
    names = [*_names(features)]
    for column in columns:
        top = reader.path_of(column, features)[0]
        if column not in names and type(features.get(top)).__name__ != "Json":
            known = [name for name in names if name.count(".") == column.count(".")]
            raise unknown("column", column, known or names, place)


def _names(features: Any, inside: str = "") -> Iterator[str]:
    """Yield the names of columns, and of the fields of those that have some."""
    for name, feature in features.items():
        yield f"{inside}{name}"
        if isinstance(feature, dict):
            yield from _names(feature, f"{inside}{name}.")
        elif type(feature).__name__ == "Translation":
            yield from (f"{inside}{name}.{language}" for language in feature.languages)


def _parts(data: DataSet, counts: dict[str, int]) -> dict[str, tuple[str, int, int]]:
    """Return the rows of each split as those of the repository's split, their first one and their end.

    Raises:
        UserError: two splits have rows in common.
    """
    from datasets import ReadInstruction

    splits = {str(name): text for name, text in reader.source_of(data).splits.items()}
    parts = {}
    for name, text in splits.items():
        (part,) = ReadInstruction.from_spec(text).to_absolute(counts)
        end = counts[part.splitname] if part.to is None else part.to
        parts[name] = part.splitname, part.from_ or 0, end
    for (name, one), (other, two) in combinations(parts.items(), 2):
        if one[0] == two[0] and max(one[1], two[1]) < min(one[2], two[2]):
            raise UserError(
                f"data set {data.name}: {name} ({splits[name]}) and {other} ({splits[other]}) have rows in common; "
                "name rows of which none is in both."
            )
    return parts


def _check_classes(data: DataSet, found: dict[str, Any]) -> None:
    """Check that all files or splits number the classes of a column by the same names.

    Raises:
        UserError: they do not.
    """
    for column in reader.source_of(data).columns:
        leaves = {place: reader.field(each, reader.path_of(column, each)) for place, each in found.items()}
        classes = {place: leaf.names for place, leaf in leaves.items() if hasattr(leaf, "names")}
        for (place, names), (other, others) in pairwise(classes.items()):
            if names != others:
                one, two = (", ".join(each[:SHOWN]) for each in (names, others))
                raise UserError(
                    f"data set {data.name}: column {column} has the classes {one} in {place}, but {two} in {other}, so "
                    "that a number means another class there; name splits that agree."
                )


def cause(error: BaseException) -> str:
    """Return what the error of a library that wraps others goes back to, or the hub's answer, in one line."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError

    while error.__cause__ is not None and not isinstance(error, HfHubHTTPError | DatasetNotFoundError):
        error = error.__cause__
    return "a file has no rows" if isinstance(error, StopIteration) else sentence(error)


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
        raise UserError(f"{what} could not be downloaded: {cause(error)}. {HELP} {instead}".strip()) from error
