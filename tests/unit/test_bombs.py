"""Files with embedded code: no reader runs it."""

import pickle

import pytest

from helpers.common import tiny_run
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.errors import UserError
from shardlab.launch.attempts import read_story
from shardlab.launch.images import read_report
from shardlab.models.weights import open_weights
from shardlab.records import manifest, metrics
from shardlab.records.reports import TrainReport
from shardlab.settings import load
from shardlab.settings.types import read_run


class Bomb:
    def __reduce__(self):
        return (print, ("code ran",))


READERS = {
    "model.safetensors": lambda path: open_weights(path).__enter__(),
    "manifest.json": lambda path: manifest.read(path.parent),
    "train.json": lambda path: TrainReport.read(path, "train again"),
    "run.json": read_run,
    "train.image.json": read_report,
    "dataset.json": lambda path: store.fingerprint_of(path.parent),
    "site.yaml": load.read_yaml,
    "attempts.json": lambda path: read_story(path.parent),
    "tokenizer.json": lambda path: open_tokenizer(path),
}


def open_tokenizer(path):
    (path.parent / "config.json").write_text('{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}')
    data = tiny_run("xsum").data.model_copy(update={"tokenizer": str(path.parent)})
    encode(data, {split: [("a", "b")] for split in ("train", "validation", "test")})


@pytest.mark.parametrize("name", READERS)
def test_nothing_that_is_read_runs_code(tmp_path, capsys, name):
    """A pickle in place of each kind of file; YAML with a tag that would call a function."""
    content = pickle.dumps(Bomb(), protocol=0) if name != "site.yaml" else b"!!python/object/apply:print [code ran]"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        READERS[name](tmp_path / name)
    assert "\n" not in str(error.value)
    assert name in str(error.value) or name == "tokenizer.json"
    assert "code ran" not in capsys.readouterr().out


def test_metrics_that_are_a_pickle_are_no_records(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_bytes(pickle.dumps(Bomb()))
    assert metrics.read(tmp_path / "metrics.jsonl") == []
    assert "code ran" not in capsys.readouterr().out
