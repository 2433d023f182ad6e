"""Data and models of the hub, with the real libraries: what is pinned is what is read; splits, columns, errors."""

import errno
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers.hub_files import environment, repository, use_here
from helpers.hub_server import Hub
from shardlab.data import hub as reader
from shardlab.data import hub_download
from shardlab.errors import UserError
from shardlab.files import COMMAND
from shardlab.schema import check
from shardlab.settings import split_slices
from shardlab.settings.types import DataSet, HubSource, Model

REPO = "tester/some"
SPLITS = {"train": "train", "validation": "validation", "test": "test"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = Hub({})
    use_here(server, monkeypatch, tmp_path / "home")
    yield server
    server.close()


@pytest.fixture
def raw(tmp_path):
    return tmp_path / "raw $HOME [a]*"


def source(**settings):
    return check(
        HubSource, {"repo": REPO, "revision": "main", "columns": ["text"], "splits": SPLITS} | settings, "file"
    )


def data_set(**settings):
    return DataSet(name="mine", task="language_modelling", seed=0, options={}, reader="hub", hub=source(**settings))


def samples(raw, **settings):
    """Download and read."""
    data = data_set(**settings)
    hub_download.download(data, raw)
    return {name: [*rows] for name, rows in reader.read(data, raw).items()}


def numbered(word="", train=20, validation=3, test=3, **others):
    """Splits with the texts "WORD SPLIT ROW"."""
    sizes = {"train": train, "validation": validation, "test": test} | others
    return {name: {"text": [f"{word} {name} {i}".strip() for i in range(size)]} for name, size in sizes.items() if size}


def files(splits, config="default"):
    return repository(config, splits)


def refusal(raw, **settings):
    with pytest.raises(UserError) as caught:
        samples(raw, **settings)
    assert not (raw / "download.json").exists()
    return str(caught.value)


def picture(gray, size=4):
    buffer = io.BytesIO()
    Image.fromarray(np.full((size, size), gray, np.uint8)).save(buffer, "png")
    return buffer.getvalue()


def table(features, rows):
    """Bytes of a Parquet file with these rows, as they are."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, datasets.Features(features).arrow_schema), buffer)
    return buffer.getvalue()


# What is pinned


def test_a_revision_that_is_changed_back_gives_its_own_rows(hub, raw):
    commits = {word: hub.push(REPO, files(numbered(word))) for word in ("old", "new")}
    for word in ("old", "new", "old"):
        found = samples(raw, revision=commits[word])
        assert found["train"] == [(f"{word} train {i}",) for i in range(20)]


def test_files_that_the_client_keeps_from_another_commit_are_refused(hub, raw, monkeypatch):
    old, new = (hub.push(REPO, files(numbered(word))) for word in ("old", "new"))
    samples(raw, revision=old)
    # As without a connection in the middle: the client then leaves the file that is there.
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, local_dir, **__: local_dir)
    assert f"is not the file of commit {new}" in refusal(raw, revision=new)


def test_a_download_of_another_fingerprint_is_refused(hub, raw):
    hub.push(REPO, files(numbered()))
    assert "data set mine: the files of tester/some have the fingerprint" in refusal(raw, fingerprint="0" * 64)


def test_a_branch_that_moved_is_refused(hub, raw):
    hub.push(REPO, files(numbered()))
    samples(raw)
    (raw / "download.json").unlink()  # as Snakemake does before it runs the rule again
    hub.push(REPO, files(numbered("new")))
    assert "changed since the first download" in refusal(raw)


def test_reading_needs_a_download_and_no_network(hub, raw):
    with pytest.raises(UserError, match=r"download\.json is missing"):
        reader.read(data_set(), raw)
    hub.push(REPO, files(numbered()))
    hub_download.download(data_set(), raw)
    calls = len(hub.calls)
    assert len([*reader.read(data_set(), raw)["train"]]) == 20
    assert len(hub.calls) == calls


def test_without_a_network_data_and_models_are_one_sentence(hub, raw):
    hub.close()
    assert "could not be downloaded" in (said := refusal(raw))
    assert "data=embedded" in said
    with pytest.raises(UserError, match="model tester/some at main could not be downloaded"):
        hub_download.download_model(model("main"), raw)


def test_other_settings_than_those_of_the_download_are_refused(hub, raw):
    old, new = (hub.push(REPO, files(numbered(word))) for word in ("old", "new"))
    samples(raw, revision=old)
    with pytest.raises(UserError, match="was downloaded with other settings than data set mine has now"):
        reader.read(data_set(revision=new), raw)


def test_the_fingerprint_is_that_of_the_configuration_whatever_was_there_before(hub, raw, tmp_path):
    configs = {name: files(numbered(name), name) for name in ("en", "de")}
    both = configs["en"] | configs["de"]
    both["README.md"] = b"".join([b"---\nconfigs:\n", *(part(configs[name]) for name in configs), b"---\n"])
    hub.push(REPO, both)
    fresh = hub_download.download(data_set(config="de"), tmp_path / "fresh")
    hub_download.download(data_set(config="en"), raw)
    later = hub_download.download(data_set(config="de"), raw)
    assert later["fingerprint"] == fresh["fingerprint"]
    assert later["files"].keys() == {f"de/{split}-00000-of-00001.parquet" for split in SPLITS}
    assert next(iter(reader.read(data_set(config="de"), raw)["train"])) == ("de train 0",)


def part(config):
    return config["README.md"].split(b"configs:\n")[1].replace(b"  default: true\n---\n", b"")


def test_only_the_files_of_the_named_splits_are_downloaded(hub, raw):
    hub.push(REPO, files(numbered(unsupervised=30)))
    samples(raw)
    assert not [path for _, path, _ in hub.calls if "unsupervised" in path]


@pytest.fixture
def folders(hub):
    """A repository of pictures in folders: gray 10 and 20 in a, 30 and 40 in b."""
    grays = {"a": (10, 20), "b": (30, 40)}
    return hub.push(
        REPO,
        {
            f"{split}/{label}/{i}.png": picture(gray)
            for split in SPLITS
            for label, each in grays.items()
            for i, gray in enumerate(each)
        },
    )


PICTURES = {"columns": ["image", "label"]}


def test_pictures_in_folders_are_files_of_the_manifest(folders, raw):
    rows = [*samples(raw, **PICTURES)["train"]]
    assert [(image.getpixel((0, 0)), label) for image, label in rows] == [(10, 0), (20, 0), (30, 1), (40, 1)]
    (raw / "files/train/a/0.png").write_bytes(picture(200))
    with pytest.raises(UserError, match=r"0\.png is not the file that was downloaded"):
        reader.read(data_set(**PICTURES), raw)


def test_a_download_can_be_moved_and_linked_and_reading_writes_nothing_to_it(folders, raw, tmp_path):
    hub_download.download(data_set(**PICTURES), raw)
    shutil.move(raw, tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "moved").rglob("*")}
    for place in ("moved", "link"):
        rows = reader.read(data_set(**PICTURES), tmp_path / place)["train"]
        assert [image.getpixel((0, 0)) for image, _ in rows] == [10, 20, 30, 40]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "moved").rglob("*")} == before


def model(revision, pretrained=True):
    return Model(
        name=f"hf:{REPO}",
        args={},
        repo=REPO,
        revision=revision,
        pretrained=pretrained,
        blocks=[],
        segments=0,
        tensor={},
        folder="data/models/some",
    )


def test_a_models_folder_has_no_weights_of_another_revision(hub, raw):
    one = hub.push(REPO, {"config.json": b"{}", "model.safetensors": b"one", "notes.md": b"no"})
    shards = {f"model-0000{i}-of-00002.safetensors": b"%d" % i for i in (1, 2)}
    two = hub.push(REPO, {"config.json": b"{}", "model.safetensors.index.json": b"{}"} | shards)
    for revision, expected in ((one, {"model.safetensors"}), (two, {"model.safetensors.index.json", *shards})):
        manifest = hub_download.download_model(model(revision), raw)
        assert manifest["files"].keys() == expected | {"config.json"}
        assert {path.name for path in raw.iterdir() if not path.name.startswith(".")} == expected | {
            "config.json",
            "download.json",
            "first_download.json",
        }


def test_weights_of_the_same_commit_stay_for_runs_that_need_them(hub, raw):
    one = hub.push(REPO, {"config.json": b"{}", "model.safetensors": b"one"})
    hub_download.download_model(model(one), raw)
    assert hub_download.download_model(model(one, pretrained=False), raw)["files"].keys() == {"config.json"}
    assert (raw / "model.safetensors").exists()


# Splits


def test_splits_have_other_names_and_can_be_parts(hub, raw):
    hub.push(REPO, files(numbered(valid=5, validation=0)))
    found = samples(raw, splits={"train": "train[:80%]", "validation": "valid", "test": "train[16:18]"})
    assert [len(found[name]) for name in SPLITS] == [16, 5, 2]
    assert found["test"] == [("train 16",), ("train 17",)]
    assert found["validation"][0] == ("valid 0",)


def test_rows_are_held_out_of_train_for_any_split(hub, raw):
    hub.push(REPO, files(numbered(validation=0, test=0)))
    settings = {"splits": {"train": "train"}, "holdout": {"validation": 4, "test": 6}, "rows": {"train": 3}}
    found = samples(raw, **settings)
    assert [len(found[name]) for name in SPLITS] == [3, 4, 6]
    whole = samples(raw, **settings | {"rows": {}})
    assert sorted(row for rows in whole.values() for row in rows) == sorted((f"train {i}",) for i in range(20))
    assert whole["validation"] == found["validation"]
    assert found["train"] == whole["train"][:3]


def test_rows_are_counted_and_held_out_where_no_file_says_how_many(hub, raw):
    lines = {
        split: "".join(json.dumps({"text": f"{split} {i}"}) + "\n" for i in range(10)) for split in ("train", "test")
    }
    hub.push(REPO, {f"{split}.jsonl": text.encode() for split, text in lines.items()})
    found = samples(raw, splits={"train": "train[2:]", "test": "test"}, holdout={"validation": 3})
    assert len(found["train"]) == 5
    assert {*found["train"], *found["validation"]} == {(f"train {i}",) for i in range(2, 10)}


@given(
    start=st.none() | st.integers(-100, 100),
    stop=st.none() | st.integers(-100, 100),
    unit=st.sampled_from(["", "%"]),
    count=st.integers(100, 1000),
)
def test_rows_of_a_split_are_those_that_datasets_means(start, stop, unit, count):
    bounds = ["" if bound is None else f"{bound}{unit}" for bound in (start, stop)]
    text = f"train[{bounds[0]}:{bounds[1]}]"
    theirs = datasets.ReadInstruction.from_spec(text).to_absolute({"train": count})[0]
    assert [*split_slices.parse(text).rows(count)] == [
        *range(theirs.from_ or 0, count if theirs.to is None else theirs.to)
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"splits": {"train": "train", "test": "test"}}, "`splits` has no validation; name the repository's split"),
        ({"splits": {"train": "train", "test": "test"}}, "`holdout: {validation: 1000}`"),
        ({"splits": {"validation": "validation", "test": "test"}}, "`splits` has no train"),
        ({"holdout": {"validation": 5}}, "validation is given by `splits` (validation) and by `holdout`"),
        ({"splits": SPLITS | {"test": "train"}}, "train (train) and test (train) have rows in common"),
        ({"splits": SPLITS | {"test": "train[:10]"}}, "train (train) and test (train[:10]) have rows in common"),
        (
            {"splits": SPLITS | {"train": "train[:80%]", "test": "train[70%:]"}},
            "train (train[:80%]) and test (train[70%:]) have rows in common",
        ),
        ({"splits": SPLITS | {"train": "train[:80"}}, "'train[:80' is no split"),
        ({"splits": SPLITS | {"train": "train[:80%:2]"}}, "'train[:80%:2]' is no split"),
        ({"splits": SPLITS | {"train": "train[:180%]"}}, "'train[:180%]' is no split"),
        ({"splits": SPLITS | {"train": "train[10%:80]"}}, "'train[10%:80]' is no split"),
    ],
)
def test_splits_that_cannot_be_are_refused_by_the_settings_alone(settings, words):
    with pytest.raises(UserError) as caught:
        source(**settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"splits": SPLITS | {"validation": "valid"}}, "there is no split 'valid'; did you mean validation?"),
        ({"splits": SPLITS | {"validation": "dev"}}, "`holdout: {validation: 1000}`"),
        ({"splits": SPLITS | {"train": "train[:30]"}}, "train: train[:30], but the split train has only 20 rows"),
        (
            {"splits": SPLITS | {"train": "train[:15]", "test": "train[60%:]"}},
            "train (train[:15]) and test (train[60%:]) have rows in common",
        ),
        (
            {"splits": {"train": "train"}, "holdout": {"validation": 10, "test": 10}},
            "takes 20 rows of train, which has 20",
        ),
        ({"columns": ["txt"]}, "there is no column 'txt'; did you mean text?"),
        ({"config": "en"}, "there is no configuration 'en'; known: default"),
    ],
)
def test_what_the_repository_does_not_have_is_one_sentence(hub, raw, settings, words):
    hub.push(REPO, files(numbered()))
    assert words in refusal(raw, **settings)


def test_an_unknown_split_is_refused_before_the_files_are_downloaded(hub, raw):
    hub.push(REPO, files(numbered()))
    refusal(raw, splits=SPLITS | {"test": "tset"})
    assert not [path for _, path, _ in hub.calls if path.endswith(".parquet")]


def test_the_configurations_are_listed_where_none_is_named(hub, raw):
    names = [f"language_{i}" for i in range(30)]
    configs = [files(numbered(), name) for name in names]
    both = {path: content for each in configs for path, content in each.items()}
    both["README.md"] = b"".join([b"---\nconfigs:\n", *map(part, configs), b"---\n"])
    hub.push(REPO, both)
    message = refusal(raw)
    assert f"name one: `config:` {', '.join(sorted(names))}." in message
    assert samples(raw, config="language_7")["test"][0] == ("test 0",)


# Columns


def with_columns(**columns):
    """A repository whose splits all have these columns."""
    return files(dict.fromkeys(SPLITS, columns))


def test_columns_that_nobody_named_are_not_decoded(hub, raw):
    broken = {"bytes": b"no picture", "path": None}
    features = {"text": datasets.Value("string"), "image": datasets.Image(), "sound": datasets.Audio()}
    content = table(features, [{"text": "a", "image": broken, "sound": broken}])
    hub.push(REPO, {f"data/{split}-0.parquet": content for split in SPLITS})
    assert samples(raw)["train"] == [("a",)]


def test_a_field_of_a_column_is_named_by_its_path(hub, raw):
    hub.push(REPO, with_columns(translation=[{"en": "a dog", "de": "ein Hund"}], **{"note.of": ["x"]}))
    assert samples(raw, columns=["translation.de", "note.of", "translation.en"])["test"] == [("ein Hund", "x", "a dog")]
    assert "no column 'translation.fr'; did you mean translation.en?" in refusal(raw, columns=["translation.fr"])


def test_a_field_that_a_line_does_not_have_is_one_sentence_with_the_row(hub, raw):
    lines = [{"pair": {"en": "a"}}, {"pair": None}, {"pair": {"de": "b"}}]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    hub.push(REPO, {f"{split}.jsonl": text for split in SPLITS})
    data = data_set(columns=["pair.xx"])
    hub_download.download(data, raw)
    with pytest.raises(
        UserError, match=r"train of tester/some, row 0, column pair\.xx: there is no field xx; it has en"
    ):
        [*reader.read(data, raw)["train"]]
    data = data_set(columns=["pair.en"])
    hub_download.download(data, raw)
    rows = iter(reader.read(data, raw)["train"])
    assert next(rows) == ("a",)
    with pytest.raises(UserError, match=r"row 1, column pair\.en: there is no value \(null\), so no field en"):
        next(rows)


def test_columns_that_differ_between_files_do_not_matter_unless_they_are_named(hub, raw):
    splits = {split: {"text": [split]} for split in SPLITS}
    splits["test"]["extra"] = [1]
    hub.push(
        REPO,
        {
            f"{split}.jsonl": json.dumps({key: value[0] for key, value in columns.items()}).encode()
            for split, columns in splits.items()
        },
    )
    assert samples(raw)["test"] == [("test",)]
    assert "split train of tester/some: there is no column 'extra'; did you mean text?" in refusal(
        raw, columns=["extra"]
    )
    hub.push(REPO, files(splits))
    shutil.rmtree(raw)
    assert samples(raw)["test"] == [("test",)]


def labels(*names):
    return datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=[*names]))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_classes_that_have_other_names_in_another_split_are_refused(hub, raw, kind, tmp_path):
    names = {"train": ("cat", "dog", "emu"), "validation": ("cat", "dog", "emu"), "test": ("emu", "cat", "dog")}
    content = {}
    for split in SPLITS:
        rows = datasets.Dataset.from_dict({"text": ["x"], "label": [0]}, labels(*names[split]))
        if kind == "parquet":
            rows.to_parquet(tmp_path / split)
        else:
            rows.save_to_disk(tmp_path / f"{split}s")
            shutil.copy(next((tmp_path / f"{split}s").glob("*.arrow")), tmp_path / split)
        content[f"{split}.{kind}"] = (tmp_path / split).read_bytes()
    hub.push(REPO, content)
    assert (
        f"column label has the classes cat, dog, emu in train.{kind}, but emu, cat, dog in test.{kind}, so that"
    ) in refusal(raw, columns=["text", "label"])
    assert samples(raw, columns=["text"])["train"] == [("x",)]


def test_what_the_repository_says_about_its_files_is_followed(hub, raw):
    card = """---
configs:
- config_name: default
  sep: ";"
  data_files:
  - {split: train, path: "train*"}
  - {split: test, path: "test*"}
dataset_info:
  features:
  - {name: text, dtype: string}
  - name: label
    dtype: {class_label: {names: {"0": zebra, "1": ant}}}
---
"""
    lines = gzip.compress(b"label;text\nant;1\nzebra;None of it\n")
    hub.push(REPO, {"README.md": card.encode(), "train-0.csv.gz": lines, "test.csv.gz": lines, "train-1.csv.gz": lines})
    found = samples(
        raw, columns=["text", "label"], splits={"train": "train[:3]", "test": "test", "validation": "train[3:]"}
    )
    assert found["train"] == [("1", 1), ("None of it", 0), ("1", 1)]
    assert found["validation"] == [("None of it", 0)]


METADATA = '{"file_name": "a.png", "label": 4}\n{"file_name": "b.png", "label": 2}\n'


@pytest.mark.parametrize(
    ("inside", "labels"),
    [
        ({"a.png": picture(10), "b.png": picture(30), "metadata.jsonl": METADATA}, [4, 2]),
        ({"ant/b.png": picture(10), "cat/a.png": picture(30)}, [0, 1]),
    ],
)
def test_pictures_in_an_archive_are_read_from_it(hub, raw, inside, labels):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in inside.items():
            file.writestr(name, content)
    hub.push(REPO, {f"{split}.zip": archive.getvalue() for split in SPLITS})
    found = samples(raw, **PICTURES)["train"]
    assert [(image.getpixel((0, 0)), label) for image, label in found] == [*zip([10, 30], labels, strict=True)]


def test_several_files_of_metadata_are_read_in_the_order_of_their_names(hub, raw):
    """datasets has them in a set, whose order differs from one process to the next."""
    line = b'{"file_name": "a.png", "label": %d}\n'
    parts = {f"{split}/{i}": i for split in SPLITS for i in range(8)}
    hub.push(
        REPO,
        {f"{part}/a.png": picture(1) for part in parts}
        | {f"{part}/metadata.jsonl": line % i for part, i in parts.items()},
    )
    assert [label for _, label in samples(raw, **PICTURES)["train"]] == [*range(8)]


def test_files_that_are_not_read_are_counted(hub, raw, capsys):
    """Those whose name is of no split, and pictures without a row of metadata."""
    content = {f"{split}/{name}.png": picture(1) for split in SPLITS for name in "ab"} | {"more.png": picture(1)}
    lines = {split: METADATA if split == "test" else METADATA.splitlines()[0] for split in SPLITS}
    hub.push(REPO, content | {f"{split}/metadata.jsonl": text.encode() for split, text in lines.items()})
    assert [len(rows) for rows in samples(raw, **PICTURES).values()] == [1, 1, 2]
    said = capsys.readouterr().out
    assert "files of the repository that are read: 3 of 3 .jsonl, 6 of 7 .png\n" in said
    notes = [f"note: split {split}: 1 of 2 files have a row of metadata" for split in ("train", "validation")]
    assert re.findall("note: split.*metadata", said) == notes


# Errors


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"bytes": b"<html>", "path": None}, "cannot identify image file"),
        ({"bytes": b"", "path": None}, "the picture has 0 bytes."),
        (
            {"bytes": None, "path": "http://127.0.0.1:9/a.png"},
            "lies outside of the repository, at http://127.0.0.1:9/a.png",
        ),
        ({"bytes": None, "path": "/etc/hostname"}, "lies outside of the repository, at /etc/hostname"),
    ],
)
def test_a_picture_that_cannot_be_decoded_is_named_by_split_row_and_column(hub, raw, second, words):
    first = {"bytes": picture(7), "path": None}
    content = {
        f"{split}.parquet": table({"image": datasets.Image()}, [{"image": each} for each in rows])
        for split, rows in {"train": [first], "validation": [first], "test": [first, second]}.items()
    }
    hub.push(REPO, content)
    data = data_set(columns=["image"])
    hub_download.download(data, raw)
    with pytest.raises(UserError) as caught:
        [*reader.read(data, raw)["test"]]
    assert str(caught.value).startswith("data set mine: split test of tester/some, row 1, column image: ")
    assert words in str(caught.value)
    assert "0x" not in str(caught.value)


def test_what_is_wrong_in_a_file_is_said_with_its_split(hub, raw):
    good = b"".join(b'{"text": "%d"}\n' % i for i in range(3))
    hub.push(REPO, {"train.jsonl": good, "validation.jsonl": good, "test.jsonl": good + b'{"text": "\n'})
    assert refusal(raw) == (
        "data set mine: split test of tester/some cannot be read from row 0 on: JSON parse error: Invalid encoding in "
        "string. in row 3."
    )


LINE = b'{"text": "a"}\n'
LINES = {"train.jsonl": LINE, "validation.jsonl": LINE, "test.jsonl": LINE}
COMMAS = dict.fromkeys(("train.csv", "validation.csv"), b'text,of,by\n"a, or\nb","book ""0""",c\n\n')


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (files(numbered()) | {"default/test-00000-of-00001.parquet": b"<html>" * 9}, "Parquet magic bytes not found"),
        (COMMAS | {"test.csv": b"text,of,by\nit is 0,book 0,a,\n"}, r"test\.csv has 4 fields in line 2, but 3 columns"),
        (COMMAS | {"test.csv": b"text,of,by\n\nit is 0,book 0\n"}, r"test\.csv has 2 fields in line 3, but 3 columns"),
        (LINES | {"test.jsonl": b""}, "split test of tester/some .* a file has no rows"),
        (LINES | {"README.md": b"---\nconfigs: [\n---\n"}, "YAML at the beginning of its README.md cannot be read"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(hub, raw, content, words):
    hub.push(REPO, content)
    assert re.search(words, refusal(raw))


def test_a_split_without_rows_is_empty(hub, raw):
    empty = table({"text": datasets.Value("string")}, [])
    hub.push(REPO, files(numbered()) | {"default/test-00000-of-00001.parquet": empty})
    assert samples(raw)["test"] == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "Free space or quota there"),
        (RuntimeError("Task error: I/O error: No space left on device (os error 28)"), "Free space or quota there"),
        (ConnectionError("reset"), "Run this on a node with a network, and again if it was interrupted. The embedded"),
        (ValueError("something else"), "could not be downloaded: something else."),
    ],
)
def test_the_advice_fits_the_cause(hub, raw, monkeypatch, error, words):
    hub.push(REPO, files(numbered()))

    def fails(*_, **__):
        raise RuntimeError("around it") from error

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fails)
    message = refusal(raw)
    assert words in message
    assert ("network" in words) == ("network" in message)


def test_repositories_and_revisions_that_are_not_there_are_told_apart(hub, raw):
    assert "there is no such repository, or you may not read it" in refusal(raw)
    hub.push(REPO, files(numbered()))
    hub.unknown.add("v2")
    assert "there is no such revision. Name a commit or a branch" in refusal(raw, revision="v2")
    hub.gated[REPO] = "Bearer hf_mine"
    assert "log in: hf auth login, or HF_TOKEN." in refusal(raw)


def test_a_dataset_script_is_refused(hub, raw):
    hub.push(REPO, {"some.py": b"", "README.md": b""})
    assert "Dataset scripts are no longer supported" in refusal(raw)


@pytest.mark.long
@pytest.mark.parametrize("place", ["file", "variable"])
def test_the_login_of_the_user_is_used_and_the_home_is_left_alone(hub, raw, tmp_path, place):
    hub.push(REPO, files(numbered()))
    hub.gated[REPO] = "Bearer hf_mine"
    home = tmp_path / "own home"
    token = home / ".cache/huggingface/token"
    token.parent.mkdir(parents=True)
    nowhere = dict.fromkeys(("HF_HUB_CACHE", "HF_DATASETS_CACHE"), "/proc/nowhere")
    variables = {"HOME": str(home)} | nowhere
    if place == "file":
        token.write_text("hf_mine\n")
    else:
        variables["HF_TOKEN"] = "hf_mine"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "XDG_"))}
    data = data_set().model_copy(update={"options": {"vocab_size": 300, "sequence_length": 8}}).model_dump_json()
    for program, *arguments in (("download", "--output", raw), ("prepare", "--raw", raw, "--output", tmp_path / "out")):
        command = [sys.executable, COMMAND, program, "--data", data, *arguments]
        done = subprocess.run(
            [*map(str, command)], env=kept | environment(hub) | variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert {*hub.logins} == {"Bearer hf_mine"}
    left = [path for path in home.rglob("*") if path.is_file()]
    assert left == ([token] if place == "file" else [])
    assert not any("hf_mine" in path.read_text(errors="ignore") for path in raw.rglob("*") if path.is_file())


def test_a_parquet_file_is_read_in_parts(hub, raw, monkeypatch):
    """Of one row group, most of which is not in memory."""
    monkeypatch.setattr(reader, "BATCH", 2**20)
    content = io.BytesIO()
    pq.write_table(pa.table({"text": [os.urandom(2**15) for _ in range(512)]}), content, write_batch_size=64)
    hub.push(REPO, files(numbered()) | {"default/train-00000-of-00001.parquet": content.getvalue()})
    hub_download.download(data_set(), raw)
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in reader.read(data_set(), raw)["train"])
    assert most < len(content.getvalue()) / 2


def test_the_clients_caches_of_the_user_are_not_used(monkeypatch):
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    for name in ("HF_HOME", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setenv(name, "/mine")
    reader.libraries()
    assert {name for name, value in os.environ.items() if value == "/mine"} == {"HF_TOKEN_PATH"}
