"""Mistakes in configuration files and data: one sentence that names the key or file and what would work."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from helpers.common import build, save_initial, tiny_run
from shardlab import data as data_sets
from shardlab import models
from shardlab.data import pairs, store
from shardlab.data.encoders import encode
from shardlab.errors import UserError
from shardlab.runtime import tasks
from shardlab.settings import code_fingerprint, deepspeed, load, model_and_data, resolve
from shardlab.settings.types import read_run
from shardlab.train import evaluation


def sentence(call, *arguments):
    """Return the error message, which must be one line."""
    with pytest.raises(UserError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A copy of config/ for one test."""
    shutil.copytree(load.CONFIG, tmp_path / "config")
    monkeypatch.setattr(load, "CONFIG", tmp_path / "config")
    caches = (load.read_yaml, load.names, load.workload, load.strategy, code_fingerprint._room)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path / "config"
    for cache in caches:
        cache.cache_clear()


def run_of(workload, strategy="single", **values):
    return resolve.run(load.config({"workloads": [workload], **values}), strategy, workload)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("task: regression", "task: regression\ntask: regression", ["mlp.yaml", "`task` is duplicated", "line 7"]),
        ("rows: 1024", "rows: 01024", ["mlp.yaml", "01024", "begins with 0; write 1024"]),
        ("rows: 1024", "rows: 17:04", ["mlp.yaml", "17:04 in line", "is read with base 60; write one number"]),
        ("tensor_sizes: [hidden]", "tensor_sizes: [hiden]", ["mlp.yaml", "tensor_sizes: hiden", "hidden"]),
        ("segments: [2]", "segments: [layers]", ["mlp.yaml", "segments: layers", "hidden"]),
        ("  embedded:\n", "  hub:\n", ["config: data is embedded", "only hub"]),
        ("sizes:\n", "tensor_size:\n", ["mlp.yaml", "`sizes` is missing"]),
        ("task: regression", "taks: regression", ["mlp.yaml", "unknown key `taks`; did you mean `task`?"]),
        ("sizes:\n", "sizes:\n  1: {}\n", ["mlp.yaml", "the key 1 in line", "put it in quotes: '1'"]),
        ("model: mlp", "model: [", ["mlp.yaml is not YAML"]),
        ("model: mlp", "model: \xe9", ["mlp.yaml is not UTF-8"]),
    ],
)
def test_a_workload_s_file(config, old, new, words):
    path = config / "workloads/mlp.yaml"
    path.write_text(path.read_text().replace(old, new, 1), encoding="latin-1")
    said = sentence(run_of, "mlp", "tp")
    assert all(word in said for word in words), said


def test_tokens_and_classes_that_the_model_does_not_have(config):
    text = (config / "workloads/llama2.yaml").read_text()
    own = text.replace("shape: {vocab_size: 1024}", "", 1).replace("model: {dim", "model: {vocab_size: 1024, dim", 1)
    (config / "workloads/own.yaml").write_text(own.replace("data: {seq", "data: {vocab_size: 1025, seq", 1))
    said = sentence(run_of, "own")
    assert "own.yaml: the data has vocab_size 1025, but the model 1024; write it once, under `shape:`" in said
    text = (
        (config / "workloads/vit_pretrained.yaml").read_text().replace("image_size: 28, classes: 10", "image_size: 28")
    )
    text = text.replace("recipe:", "data: {classes: 10}\n    recipe:", 1)
    for name, model in (("theirs", "{"), ("fewer", "{num_labels: 9, ")):
        (config / f"workloads/{name}.yaml").write_text(text.replace("model: {revision", f"model: {model}revision", 1))
    load.names.cache_clear()
    assert "theirs.yaml: the data has classes 10, of which the model does not know" in sentence(run_of, "theirs")
    assert "the data has classes 10, but the model 9" in sentence(run_of, "fewer")


def test_names_that_do_not_fit_in_those_of_files(config):
    (config / "workloads/my-own.yaml").write_text((config / "workloads/mlp.yaml").read_text())
    assert "letters, digits, _; call it my_own" in sentence(run_of, "my-own")
    with (config / "strategies.yaml").open("a") as file:
        file.write("my-ddp: {dp_replicate: -1}\n")
    assert "call it my_ddp" in sentence(run_of, "mlp", "my-ddp")


UNSELECTED = {
    "half": "model: [",
    "hub_alone": ("embedded:", "hub:"),
    "folder": ("model: mlp", "model: hf:./nowhere"),
    "no_size": ("small:", "huge:"),
}
"""Workload: its file's content, or what differs from mlp's."""


@pytest.mark.parametrize("name", [*UNSELECTED, "loop"])
def test_a_workload_that_is_not_selected_stops_no_other(config, name):
    path = config / f"workloads/{name}.yaml"
    if name == "loop":
        path.symlink_to(path)
    else:
        change = UNSELECTED[name]
        text = (config / "workloads/mlp.yaml").read_text().replace("name: pairs", "name: other")
        path.write_text(change if isinstance(change, str) else text.replace(*change, 1))
    configured = load.config({"workloads": ["mlp"]})
    assert model_and_data.data_set(configured, "pairs").name == "pairs"
    assert "there is no model" in sentence(model_and_data.model, configured, "data/models/mine")
    assert sentence(run_of, name), "where it is selected, it is an error"


def test_a_model_s_folder_has_one_revision(config):
    text = (config / "workloads/t5.yaml").read_text()
    for name, revision in (("same", "a97"), ("other", "b97")):
        mine = text.replace("name: package_docstrings_t5", f"name: {name}").replace("commit a97", f"commit {revision}")
        (config / f"workloads/t5_{name}.yaml").write_text(mine)
    configured = load.config({"workloads": ["t5"]})
    model_and_data.check_shared(configured, resolve.run(configured, "single", "t5_same"))
    said = sentence(model_and_data.check_shared, configured, resolve.run(configured, "single", "t5_other"))
    assert "t5_other.yaml: another workload, or another size, has google-t5/t5-base at revision a97" in said


def test_deepspeed_s_json(config, monkeypatch, tmp_path):
    monkeypatch.setattr(deepspeed, "ROOT", tmp_path)
    (tmp_path / "config/deepspeed/zero1.json").write_text("[1]")
    assert "zero1.json is a list" in sentence(run_of, "mlp", "zero1")


PICTURES = {"channels": 1, "image_size": 2, "classes": 2}


@pytest.mark.parametrize(
    ("task", "options", "sample", "words"),
    [
        ("regression", {"inputs": 2, "outputs": 1}, ([1.0, 2.0], 3.0), ["y has the shape ()", "promises (1,)"]),
        ("regression", {"outputs": 1}, ([1.0], [3.0]), ["needs the key inputs", "shape"]),
        ("regression", {"inputs": 1, "outputs": 1}, ([float("nan")], [3.0]), ["x", "not finite"]),
        ("classification", PICTURES, ([1.0, 2.0], 0), ["an image"]),
        ("classification", PICTURES, (np.zeros((1, 2, 2), np.uint8), -1), ["the label is -1"]),
        ("language_modelling", {"vocab_size": 300, "sequence_length": 4}, (3,), ["it has 3, of type int", "is a text"]),
        ("summarization", {"vocab_size": 300, "document_tokens": 9, "summary_tokens": 9}, ("a",), ["a document and"]),
    ],
)
def test_data_that_does_not_fit_its_task(tmp_path, task, options, sample, words):
    data = tiny_run("mlp").data.model_copy(update={"task": task, "options": options, "name": "mine"})
    splits = dict.fromkeys(("train", "validation", "test"), [sample] * 4)
    said = sentence(lambda: store.write(tmp_path, data, *encode(data, splits)))
    assert said.startswith("data set mine: " if "key" in said else "data set mine, split train, row 0: ")
    assert not list(tmp_path.glob("[!.]*"))
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("workload", "change", "words"),
    [
        ("mlp", {"tensor": {"hiden": "column"}}, ["tensor: no submodule", "hiden", "hidden"]),
        ("mlp", {"blocks": ["layers.*"]}, ["blocks: no submodule", "layers.*"]),
        ("mnist", {"tensor": {"convolution1": "column"}}, ["convolution1", "Conv2d", "Linear"]),
        ("mlp", {"segments": 3}, ["segments", "says 3", "has 2"]),
    ],
)
def test_a_model_that_the_file_does_not_describe(workload, change, words):
    run = tiny_run(workload)
    said = sentence(models.check_plan, run.model.model_copy(update=change), build(run))
    assert all(word in said for word in words), said


def test_a_model_and_arguments_that_there_are_not():
    assert sentence(models.create, "mlp", {"hiden": 4}).startswith("model mlp cannot be built with")
    assert "did you mean llama" in sentence(models.create, "lama", {})


def test_a_tokenizer_of_another_kind(tmp_path):
    data = tiny_run("llama2").data.model_copy(update={"tokenizer": str(tmp_path), "name": "mine"})
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer of the tokenizers library" in sentence(encode, data, {"train": [("a",)]})


@pytest.mark.parametrize("change", [{"ranks_per_node": 3}, {"schema_version": 2}])
def test_settings_of_another_version_or_whose_ranks_are_not_those_of_the_mesh(tmp_path, change):
    values = tiny_run("mlp", "ddp").model_dump(mode="json") | change
    (tmp_path / "run.json").write_text(json.dumps(values))
    assert "run.json" in sentence(read_run, tmp_path / "run.json")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([(1, 2)], "scripts/shardlab/data/pairs.py must return {split: samples}"),
        ({"train": [1]}, "split train, row 0: read(data, raw) in scripts/shardlab/data/pairs.py must return tuples"),
        ({"train": iter([(1,)])}, "it returns train: a list_iterator."),
        ({"train": "text"}, "it returns train: a str."),
        ({"train": [(1,)], "test": [(1,)]}, "the split validation is empty"),
    ],
)
def test_a_reader_that_returns_no_samples(monkeypatch, tmp_path, returned, words):
    monkeypatch.setattr(pairs, "read", lambda data, raw: returned)
    assert words in sentence(data_sets.read, tiny_run("mlp").data, tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_test_loss_that_is_no_number(tiny_data, tmp_path, monkeypatch, value):
    """As of data that exceed float32; a metric that does is left out."""
    run, weights = tiny_run("llama2"), tmp_path / "weights"
    save_initial(run, weights)
    task = tasks.load(run.task, tiny_data / "llama2", torch.float32, torch.device("cpu"))
    monkeypatch.setattr(type(task), "metric", lambda *_: value)
    assert evaluation.evaluate_whole(run, tiny_data / "llama2", weights).metric_value is None
    monkeypatch.setattr(type(task), "loss", lambda *_: torch.tensor(value))
    with pytest.raises(UserError, match=f"llama2: the test loss of these weights is {value}: "):
        evaluation.evaluate_whole(run, tiny_data / "llama2", weights)
