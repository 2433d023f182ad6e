"""Data and models of the hub, with the real libraries: what is pinned is what is read; splits, columns, errors."""

import io
import json
import shutil

import numpy as np
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
    assert reader.read(data_set(config="de"), raw)["train"][0] == ("de train 0",)


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
    rows = samples(raw, **PICTURES)["train"]
    assert [(image.getpixel((0, 0)), label) for image, label in rows] == [(10, 0), (20, 0), (30, 1), (40, 1)]
    (raw / "files/train/a/0.png").write_bytes(picture(200))
    with pytest.raises(UserError, match=r"0\.png is not the file that was downloaded"):
        reader.read(data_set(**PICTURES), raw)


def test_a_download_can_be_moved_and_linked(folders, raw, tmp_path):
    hub_download.download(data_set(**PICTURES), raw)
    shutil.move(raw, tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    for place in ("moved", "link"):
        rows = reader.read(data_set(**PICTURES), tmp_path / place)["train"]
        assert [image.getpixel((0, 0)) for image, _ in rows] == [10, 20, 30, 40]


def test_reading_writes_nothing_beside_the_files(folders, raw):
    hub_download.download(data_set(**PICTURES), raw)
    before = {path: path.stat().st_mtime_ns for path in raw.rglob("*")}
    reader.read(data_set(**PICTURES), raw)
    assert {path: path.stat().st_mtime_ns for path in raw.rglob("*")} == before


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
