"""Data and models of the hub, with the real libraries: what is pinned is what is read; splits, columns, errors."""

import io
import json
import re
import shutil

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


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = Hub({})
    use_here(server, monkeypatch, tmp_path / "home")
    yield server
    server.close()


@pytest.fixture
def raw(tmp_path):
    return tmp_path / "raw $HOME [a]*"


def data_set(**settings):
    given = {"repo": REPO, "revision": "main", "columns": ["text"], "splits": SPLITS} | settings
    hub = check(HubSource, given, "file")
    return DataSet(name="mine", task="language_modelling", seed=0, options={}, reader="hub", hub=hub)


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
    with (raw / "test.parquet").open("ab") as file:
        file.write(b"more")
    with pytest.raises(UserError, match=r"test\.parquet is not the file that was downloaded"):
        reader.read(data_set(), raw)


def test_pictures_in_folders_can_be_moved_and_reading_writes_nothing(hub, raw, tmp_path):
    files = {}
    for path, gray in {"a/0": 10, "a/1": 20, "b/0": 30, "b/1": 40}.items():
        Image.fromarray(np.full((4, 4), gray, np.uint8)).save(buffer := io.BytesIO(), "png")
        files |= {f"{split}/{path}.png": buffer.getvalue() for split in SPLITS}
    hub.push(REPO, files)
    data = data_set(columns=["image", "label"])
    hub_download.download(data, raw)
    moved = shutil.move(raw, tmp_path / "moved")
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*")}
    rows = reader.read(data, moved)["train"]
    assert [(each.getpixel((0, 0)), label) for each, label in rows] == [(10, 0), (20, 0), (30, 1), (40, 1)]
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*")} == before


def model(revision):
    settings = {"args": {}, "blocks": [], "segments": 0, "tensor": {}, "folder": "data/models/some"}
    return Model(name=f"hf:{REPO}", repo=REPO, revision=revision, pretrained=True, **settings)


def test_a_models_folder_has_no_weights_of_another_revision(hub, raw):
    files = {"config.json": b"{}", "notes.md": b"no", "onnx/model.safetensors": b"no"}
    one = hub.push(REPO, files | {"model.safetensors": b"one"})
    shards = {f"model-0000{i}-of-00002.safetensors": b"%d" % i for i in (1, 2)}
    two = hub.push(REPO, files | {"model.safetensors.index.json": b"{}"} | shards)
    for revision, expected in ((one, {"model.safetensors"}), (two, {"model.safetensors.index.json", *shards})):
        manifest = hub_download.download_model(model(revision), raw)
        assert manifest["files"].keys() == expected | {"config.json"}
        there = {path.name for path in raw.iterdir() if not path.name.startswith(".")}
        assert there == expected | {"config.json", "download.json", "first_download.json"}


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
        # By the settings alone.
        ({"splits": {"train": "train", "test": "test"}}, "`holdout: {validation: 1000}`"),
        ({"holdout": {"validation": 5}}, "validation is given by `splits` (validation) and by `holdout`"),
        ({"splits": SPLITS | {"train": "train[:180%]"}}, "'train[:180%]' is no split"),
        # By what the repository has.
        ({"splits": SPLITS | {"validation": "valid"}}, "there is no split 'valid'; did you mean validation?"),
        (
            {"splits": SPLITS | {"train": "train[:15]", "test": "train[60%:]"}},
            "train (train[:15]) and test (train[60%:]) have rows in common",
        ),
        ({"splits": {"train": "train"}, "holdout": {"validation": 10, "test": 10}}, "20 rows of train, which has"),
        ({"columns": ["txt"]}, "there is no column 'txt'; did you mean text?"),
    ],
)
def test_splits_and_columns_that_there_cannot_be(hub, raw, settings, words):
    hub.push(REPO, numbered())
    assert words in refusal(raw, **settings)


# Columns


def test_a_field_of_a_column_is_named_by_its_path(hub, raw):
    columns = {"translation": [{"en": "a dog", "de": "ein Hund"}], "note.of": ["x"]}
    hub.push(REPO, repository("default", dict.fromkeys(SPLITS, columns)))
    assert samples(raw, columns=["translation.de", "note.of", "translation.en"])["test"] == [("ein Hund", "x", "a dog")]
    assert "no column 'translation.fr'; did you mean translation.en?" in refusal(raw, columns=["translation.fr"])


def test_classes_that_have_other_names_in_another_file_are_refused(hub, raw):
    content = {}
    for split in SPLITS:
        names = ["emu", "cat", "dog"] if split == "test" else ["cat", "dog", "emu"]
        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=names))
        content[f"{split}.parquet"] = table(features, [{"text": "x", "label": 0}])
    hub.push(REPO, content)
    said = refusal(raw, columns=["text", "label"])
    assert re.search("column label has the classes cat, dog, emu in train.*, but emu, cat, dog in test", said)
    assert samples(raw, columns=["text"])["train"][0] == ("x",)


# Errors


def test_a_picture_that_cannot_be_read_is_named(hub, raw):
    content = table({"image": datasets.Image()}, [{"image": {"bytes": b"<html>", "path": None}}])
    hub.push(REPO, {f"{split}.parquet": content for split in SPLITS})
    with pytest.raises(UserError, match=r"^data set mine: split train of tester/some, row 0, column image: cannot "):
        samples(raw, columns=["image"])


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
