"""What is prepared is what the reader gave: in any layout, in any parts, in little memory."""

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from tokenizers import Tokenizer

from helpers.common import tiny_run
from shardlab import data as data_sets
from shardlab.data import encoders, store
from shardlab.data.encoders import encode
from shardlab.data.split_file import SplitFile
from shardlab.settings import load, resolve

SPLITS = ("train", "validation", "test")


def data_set(task, **options):
    return tiny_run("mlp").data.model_copy(update={"task": task, "options": options, "name": "mine"})


def all_splits(samples):
    return dict.fromkeys(SPLITS, samples)


def test_any_layout_is_stored_as_the_format_s_own_library_stores_plain_arrays(tmp_path):
    """In parts, which the file does not show."""
    plain = {
        "a": np.arange(24.0).reshape(4, 3, 2).transpose(0, 2, 1),
        "b": np.arange(4, dtype=">i4")[::-1],
        "c": np.broadcast_to(np.array([[1, 2]], np.uint8), (4, 2)),
        "d": np.arange(8, dtype=np.float16).reshape(4, 2)[:, ::2],
    }
    with SplitFile(tmp_path / "train.safetensors", "test") as file:
        for start, end in ((0, 1), (1, 1), (1, 4)):
            file.append({name: array[start:end] for name, array in plain.items()})
        file.save()
    copies = {name: np.array(array.tolist(), array.dtype.newbyteorder("=")) for name, array in plain.items()}
    assert (tmp_path / "train.safetensors").read_bytes() == safetensors.numpy.save(copies)


@pytest.mark.parametrize("workload", ["mnist", "llama2", "xsum"])
def test_the_parts_of_an_encoder_leave_no_trace(tmp_path, monkeypatch, workload):
    data = tiny_run(workload).data

    def prepared(name):
        return store.write(tmp_path / name, data, *encode(data, data_sets.read(data, tmp_path)))

    whole = prepared("whole")
    monkeypatch.setattr(encoders, "PART", 3000)
    in_parts = prepared("parts")
    assert in_parts["fingerprint"] == whole["fingerprint"]
    assert in_parts["counts"] == whole["counts"]


def test_samples_of_train_in_another_split_are_counted(tmp_path):
    data = data_set("regression", inputs=1, outputs=1)
    pairs = {"train": [(x, x) for x in range(9)], "validation": [(3, 3), (7, 7), (3, 8)], "test": [(9, 9), (0, 0)] * 2}
    splits = {name: [([x], [y]) for x, y in each] for name, each in pairs.items()}
    counts = store.write(tmp_path, data, *encode(data, splits))["counts"]
    also = {"samples that are also in train": 2}
    assert counts == {"train": {}, "validation": also, "test": also}


def test_what_an_encoder_leaves_out_is_counted(tmp_path):
    data = data_set("summarization", vocab_size=259, document_tokens=4, summary_tokens=3)
    splits = all_splits([("abcdefg", "ab"), ("abc", "abcdefg"), ("abcd", "abc")])
    counts = store.write(tmp_path / "pairs", data, *encode(data, splits))["counts"]
    assert counts["train"] == {"documents truncated to document_tokens": 2, "summaries truncated to summary_tokens": 2}
    data = data_set("language_modelling", vocab_size=259, sequence_length=3)
    counts = store.write(tmp_path / "text", data, *encode(data, all_splits([("abc",), ("def",)])))["counts"]
    tokens = safetensors.numpy.load_file(tmp_path / "text/train.safetensors")["tokens"]
    text = Tokenizer.from_file(str(tmp_path / "text/tokenizer.json"))
    stream = [*text.encode("abc").ids, 2, *text.encode("def").ids, 2]
    assert tokens.tolist() == [stream[:4], stream[3:7]]
    assert counts["train"] == {"tokens after the last whole window dropped": 1}


WORDS = [bytes(word).decode() for word in np.random.default_rng(0).integers(97, 123, (2000, 6), np.uint8)]


class Made:
    """So many texts, made anew each time that they are read."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return ((" ".join(np.random.default_rng(number).choice(WORDS, 1500)),) for number in range(self.count))


def test_the_memory_of_preparing_does_not_grow_with_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(encoders, "PART", 2**18)
    peaks, data = [], data_set("language_modelling", vocab_size=300, sequence_length=128)
    for count in (20, 80):
        splits = {name: Made(count if name == "train" else 1) for name in SPLITS}
        tracemalloc.start()
        store.write(tmp_path / str(count), data, *encode(data, splits))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


PINNED = Path(__file__).with_name("fingerprints.json")
WORKLOADS = ("mlp", "mnist", "xsum", "llama2")
"""One for each data set of the default matrix (vit shares mnist's)."""


@pytest.mark.parametrize("workload", WORKLOADS)
def test_fingerprint(workload, tmp_path):
    """The same wherever the lock file's packages are installed; APPROVE=1 writes those of the present ones."""
    data = resolve.run(load.config({}), "single", workload).data
    found = store.write(tmp_path, data, *encode(data, data_sets.read(data, tmp_path)))["fingerprint"]
    pinned = json.loads(PINNED.read_text()) if PINNED.exists() else {}
    if os.environ.get("APPROVE"):
        PINNED.write_text(json.dumps(pinned | {data.name: found}, indent=2, sort_keys=True) + "\n")
    else:
        assert found == pinned[data.name]
