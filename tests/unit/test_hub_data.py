"""Data and models of the hub, with the real libraries: what is pinned is what is read; splits, columns, errors."""

import io
import json
import re
import shutil
import zipfile

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from helpers.hub_files import repository, use_here
from helpers.hub_server import Hub
from shardlab.data import hub as reader
from shardlab.data import hub_download
from shardlab.errors import UserError
from shardlab.schema import check
from shardlab.settings.types import DataSet, HubSource, Model

REPO = "tester/some"
SPLITS = {"train": "train", "validation": "validation", "test": "test"}
PICTURES = {"columns": ["image", "label"]}


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
    """A repository with the texts "WORD SPLIT ROW"."""
    sizes = {"train": train, "validation": validation, "test": test} | others
    splits = {
        name: {"text": [f"{word} {name} {i}".strip() for i in range(size)]} for name, size in sizes.items() if size
    }
    return repository("default", splits)


def refusal(raw, **settings):
    with pytest.raises(UserError) as caught:
        samples(raw, **settings)
    assert not (raw / "download.json").exists()
    return str(caught.value)


def picture(gray):
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4), gray, np.uint8)).save(buffer, "png")
    return buffer.getvalue()


def table(features, rows):
    """Bytes of a Parquet file with these rows, as they are."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, datasets.Features(features).arrow_schema), buffer)
    return buffer.getvalue()


# What is pinned


def test_a_revision_that_is_changed_back_gives_its_own_rows(hub, raw):
    commits = {word: hub.push(REPO, numbered(word)) for word in ("old", "new")}
    for word in ("old", "new", "old"):
        found = samples(raw, revision=commits[word])
        assert found["train"] == [(f"{word} train {i}",) for i in range(20)]
    with pytest.raises(UserError, match="was downloaded with other settings than data set mine has now"):
        reader.read(data_set(revision=commits["new"]), raw)


def test_a_branch_that_moved_is_refused_until_its_old_commit_is_named(hub, raw):
    old = hub.push(REPO, numbered())
    samples(raw)
    (raw / "download.json").unlink()  # as Snakemake does before it runs the rule again
    hub.push(REPO, numbered("new"))
    assert f"changed since the first download. Set `revision` to the old commit {old}" in refusal(raw)
    assert samples(raw, revision=old)["test"][0] == ("test 0",)


def test_reading_needs_a_whole_download_and_no_network(hub, raw):
    with pytest.raises(UserError, match=r"download\.json is missing"):
        reader.read(data_set(), raw)
    hub.push(REPO, numbered())
    hub_download.download(data_set(), raw)
    hub.close()
    assert len([*reader.read(data_set(), raw)["train"]]) == 20
    path = raw / "test/data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(UserError, match=r"00001\.arrow is not the file that was downloaded"):
        reader.read(data_set(), raw)


def test_the_files_are_those_of_the_configuration_whatever_was_there_before(hub, raw):
    configs = [repository(name, {split: {"text": [f"{name} {split}"]} for split in SPLITS}) for name in ("de", "fr")]
    both = {path: content for each in configs for path, content in each.items()}
    parts = [each["README.md"].split(b"configs:\n")[1].replace(b"  default: true\n---\n", b"") for each in configs]
    hub.push(REPO, both | {"README.md": b"".join([b"---\nconfigs:\n", *parts, b"---\n"])})
    assert "'de', 'fr'" in refusal(raw)
    samples(raw, config="de")
    assert samples(raw, config="fr")["test"] == [("fr test",)]
    later = json.loads((raw / "download.json").read_text())
    assert later["files"].keys() == {f"fr/{split}-00000-of-00001.parquet" for split in SPLITS}


def test_pictures_in_folders_can_be_moved_and_reading_writes_nothing(hub, raw, tmp_path):
    grays = {"a/0": 10, "a/1": 20, "b/0": 30, "b/1": 40}
    hub.push(REPO, {f"{split}/{path}.png": picture(gray) for split in SPLITS for path, gray in grays.items()})
    hub_download.download(data_set(**PICTURES), raw)
    moved = shutil.move(raw, tmp_path / "moved")
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*")}
    rows = reader.read(data_set(**PICTURES), moved)["train"]
    assert [(each.getpixel((0, 0)), label) for each, label in rows] == [(10, 0), (20, 0), (30, 1), (40, 1)]
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*")} == before


def model(revision, pretrained=True):
    settings = {"args": {}, "blocks": [], "segments": 0, "tensor": {}, "folder": "data/models/some"}
    return Model(name=f"hf:{REPO}", repo=REPO, revision=revision, pretrained=pretrained, **settings)


def test_a_models_folder_has_no_weights_of_another_revision(hub, raw, monkeypatch):
    files = {"config.json": b"{}", "notes.md": b"no", "onnx/model.safetensors": b"no"}
    one = hub.push(REPO, files | {"model.safetensors": b"one"})
    shards = {f"model-0000{i}-of-00002.safetensors": b"%d" % i for i in (1, 2)}
    two = hub.push(REPO, files | {"model.safetensors.index.json": b"{}"} | shards)
    for revision, expected in ((one, {"model.safetensors"}), (two, {"model.safetensors.index.json", *shards})):
        manifest = hub_download.download_model(model(revision), raw)
        assert manifest["files"].keys() == expected | {"config.json"}
        there = {path.name for path in raw.iterdir() if not path.name.startswith(".")}
        assert there == expected | {"config.json", "download.json", "first_download.json"}
    # As without a connection in the middle: the client is then content with what is there.
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, local_dir, **__: local_dir)
    with pytest.raises(UserError, match=r"config\.json of tester/some was not downloaded"):
        hub_download.download_model(model(one), raw)


# Splits


def test_splits_have_other_names_and_can_be_parts(hub, raw):
    hub.push(REPO, numbered(valid=5, validation=0))
    found = samples(raw, splits={"train": "train[:80%]", "validation": "valid", "test": "train[-4:18]"})
    assert [len(found[name]) for name in SPLITS] == [16, 5, 2]
    assert found["test"] == [("train 16",), ("train 17",)]


def test_rows_are_held_out_of_train_for_any_split(hub, raw):
    lines = b"".join(json.dumps({"text": f"train {i}"}).encode() + b"\n" for i in range(20))
    hub.push(REPO, {"train.jsonl": lines})
    settings = {"splits": {"train": "train[2:]"}, "holdout": {"validation": 4, "test": 6}, "rows": {"train": 3}}
    found = samples(raw, **settings)
    assert [len(found[name]) for name in SPLITS] == [3, 4, 6]
    whole = samples(raw, **settings | {"rows": {}, "holdout": {"test": 6, "validation": 4}})
    assert sorted(row for rows in whole.values() for row in rows) == sorted((f"train {i}",) for i in range(2, 20))
    assert whole["validation"] == found["validation"]
    assert found["train"] == whole["train"][:3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"splits": {"train": "train", "test": "test"}}, "`holdout: {validation: 1000}`"),
        ({"holdout": {"validation": 5}}, "validation is given by `splits` (validation) and by `holdout`"),
        ({"splits": SPLITS | {"test": "train[:10]"}}, "train (train) and test (train[:10]) have rows in common"),
        ({"splits": SPLITS | {"train": "train[:180%]"}}, "'train[:180%]' is no split"),
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
        (
            {"splits": SPLITS | {"train": "train[:15]", "test": "train[60%:]"}},
            "train (train[:15]) and test (train[60%:]) have rows in common",
        ),
        ({"splits": {"train": "train"}, "holdout": {"validation": 10, "test": 10}}, "20 rows of train, which has"),
        ({"columns": ["txt"]}, "there is no column 'txt'; did you mean text?"),
    ],
)
def test_what_the_repository_does_not_have_is_one_sentence(hub, raw, settings, words):
    hub.push(REPO, numbered())
    assert words in refusal(raw, **settings)


# Columns


def test_columns_that_nobody_named_are_not_decoded(hub, raw):
    broken = {"bytes": b"no picture", "path": None}
    features = {"text": datasets.Value("string"), "image": datasets.Image(), "sound": datasets.Audio()}
    content = table(features, [{"text": "a", "image": broken, "sound": broken}])
    hub.push(REPO, {f"data/{split}-0.parquet": content for split in SPLITS})
    assert samples(raw)["train"] == [("a",)]


def test_a_field_of_a_column_is_named_by_its_path(hub, raw):
    columns = {"translation": [{"en": "a dog", "de": "ein Hund"}], "note.of": ["x"]}
    hub.push(REPO, repository("default", dict.fromkeys(SPLITS, columns)))
    assert samples(raw, columns=["translation.de", "note.of", "translation.en"])["test"] == [("ein Hund", "x", "a dog")]
    assert "no column 'translation.fr'; did you mean translation.en?" in refusal(raw, columns=["translation.fr"])


def test_a_field_that_not_every_line_has_is_missing_there(hub, raw):
    lines = [{"pair": {"en": "a", "of": 1}}, {"pair": None}, {"pair": {"de": "b"}}]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    hub.push(REPO, {f"{split}.jsonl": text for split in SPLITS})
    assert samples(raw, columns=["pair.en", "pair.de"])["train"] == [("a", None), (None, None), (None, "b")]


def test_classes_that_have_other_names_in_another_file_are_refused(hub, raw):
    content = {}
    for split in SPLITS:
        names = ["emu", "cat", "dog"] if split == "test" else ["cat", "dog", "emu"]
        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=names))
        content[f"{split}.parquet"] = table(features, [{"text": "x", "label": 0}])
    hub.push(REPO, content)
    said = refusal(raw, columns=["text", "label"])
    assert re.search("column label has the classes cat, dog, emu in validation.*, but emu, cat, dog in test", said)
    assert samples(raw, columns=["text"])["train"][0] == ("x",)


def test_a_comma_too_many_at_the_end_of_each_row_shifts_no_column(hub, raw):
    text = b'question,answer,of\nwhat is 0?,"0, or ""0""",book 0,\n'
    hub.push(REPO, {f"{split}.csv": text for split in SPLITS})
    assert samples(raw, columns=["question", "answer"])["test"] == [("what is 0?", '0, or "0"')]


def test_pictures_in_an_archive_are_refused(hub, raw):
    with zipfile.ZipFile(archive := io.BytesIO(), "w") as file:
        file.writestr("a/0.png", picture(0))
    hub.push(REPO, {f"{split}.zip": archive.getvalue() for split in SPLITS})
    assert ".zip is an archive, and pictures in archives are not read; unpack it" in refusal(raw, **PICTURES)


# Errors


def test_a_picture_that_cannot_be_read_is_named(hub, raw):
    rows = [{"image": {"bytes": content, "path": None}} for content in (picture(0), b"<html>")]
    hub.push(REPO, {f"{split}.parquet": table({"image": datasets.Image()}, rows) for split in SPLITS})
    with pytest.raises(UserError, match=r"^data set mine: split train of tester/some, row 1: cannot identify image"):
        samples(raw, columns=["image"])
    rows = [{"image": {"bytes": None, "path": "/etc/hostname"}}]
    hub.push(REPO, {f"{split}.parquet": table({"image": datasets.Image()}, rows) for split in SPLITS})
    shutil.rmtree(raw)
    assert "the data of column image lies outside of the repository, at /etc/hostname" in refusal(
        raw, columns=["image"]
    )


def test_rows_of_several_files_of_metadata_have_one_order(hub, raw):
    content = {}
    for split in SPLITS:
        for name in "abcdefg":
            row = {"file_name": f"{name}.png", "text": name}
            content |= {f"{split}/{name}/{name}.png": picture(0)}
            content |= {f"{split}/{name}/metadata.jsonl": json.dumps(row).encode()}
    hub.push(REPO, content)
    assert [text for (text,) in samples(raw)["train"]] == [*"abcdefg"]


def test_files_whose_names_have_brackets_and_an_empty_first_group_of_rows(hub, raw):
    features = {"translation": datasets.Translation(languages=["de", "en"])}
    rows = [{"translation": {"de": f"eins {number}", "en": f"one {number}"}} for number in range(2)]
    schema = pq.read_schema(io.BytesIO(table(features, rows)))
    file = io.BytesIO()
    with pq.ParquetWriter(file, schema) as writer:
        writer.write_table(schema.empty_table())
        writer.write_table(pq.read_table(io.BytesIO(table(features, rows))))
    hub.push(REPO, {f"data/{split}-[1].parquet": file.getvalue() for split in SPLITS})
    assert samples(raw, columns=["translation.en"])["train"] == [("one 0",), ("one 1",)]


PARQUET = "default/test-00000-of-00001.parquet"
COMMAS = dict.fromkeys(("train.csv", "validation.csv"), b"text,of,by\n0,0,a\n")
COMMAS |= {"test.csv": b"text,of,by\n0,0,a\n0,0,a,b\n"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (numbered() | {PARQUET: b"<html>" * 9}, "split test .* as parquet: Parquet magic bytes not found"),
        (COMMAS, "split test .* Expected 3 fields in line 3, saw 4"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(hub, raw, content, words):
    hub.push(REPO, content)
    assert re.search(words, refusal(raw))


def test_what_is_gated_is_read_with_the_user_s_token_or_asks_for_a_login(hub, raw, monkeypatch):
    hub.push(REPO, numbered())
    hub.gated[REPO] = "Bearer hf_mine"
    assert "log in (hf auth login, or HF_TOKEN)." in refusal(raw)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert len(samples(raw)["train"]) == 20


def test_without_a_network_data_and_models_are_one_sentence(hub, raw):
    hub.close()
    assert "data=embedded" in (said := refusal(raw))
    assert "could not be downloaded" in said
    with pytest.raises(UserError, match="model tester/some at main could not be downloaded"):
        hub_download.download_model(model("main"), raw)
