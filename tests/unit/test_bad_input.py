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
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.errors import UserError
from shardlab.runtime import tasks
from shardlab.settings import code_fingerprint, deepspeed, load, model_and_data, resolve
from shardlab.settings.types import read_run
from shardlab.train import evaluation, step


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
    ],
)
def test_a_workload_s_file(config, old, new, words):
    path = config / "workloads/mlp.yaml"
    path.write_text(path.read_text().replace(old, new, 1))
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


@pytest.mark.parametrize(
    ("content", "words"),
    [("model: mlp".encode("utf-16"), "UTF-8"), (bytes(range(256)), "UTF-8"), (b"- a", "list")],
)
def test_a_file_that_is_no_settings_at_all(config, content, words):
    (config / "workloads/mine.yaml").write_bytes(content)
    assert words in sentence(run_of, "mine")


def test_a_folder_and_a_name_with_a_dash(config):
    (config / "workloads/mine.yaml").mkdir()
    assert "UTF-8" in sentence(run_of, "mine")
    load.names.cache_clear()
    (config / "workloads/my-own.yaml").write_text((config / "workloads/mlp.yaml").read_text())
    assert "letters, digits, _; call it my_own" in sentence(run_of, "my-own")
    with (config / "strategies.yaml").open("a") as file:
        file.write("my-ddp: {dp_replicate: -1}\n")
    assert "call it my_ddp" in sentence(run_of, "mlp", "my-ddp")
    with (config / "strategies.yaml").open("a") as file:
        file.write("ddp: {dp_shard: -1}\n")
    load.read_yaml.cache_clear()
    assert "`ddp` is duplicated" in sentence(load.read_yaml, config / "strategies.yaml")


@pytest.mark.parametrize("name", ["1", "yes", "null"])
def test_a_strategy_s_name_that_is_no_text_to_yaml(config, name):
    with (config / "strategies.yaml").open("a") as file:
        file.write(f"{name}: {{dp_replicate: -1}}\n")
    said = sentence(load.config, {"strategies": ["all"]})
    assert f"strategies.yaml is not YAML: the key {name} in line" in said
    assert f"put it in quotes: '{name}'" in said


def test_a_workload_whose_sizes_lie_under_a_longer_key(config):
    path = config / "workloads/mlp.yaml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("tensor_sizes")]
    path.write_text("\n".join(lines).replace("\nsizes:", "\ntensor_sizes:") + "\n")
    assert "the key `sizes` is missing" in sentence(run_of, "mlp")


UNSELECTED = {
    "half": "model: [",
    "hub_alone": ("embedded:", "hub:"),
    "folder": ("model: mlp", "model: hf:./nowhere"),
    "no_size": ("small:", "huge:"),
    "code": ("reader: pairs", "reader: half_written"),
}
"""Workload: its file's content, or what differs from mlp's."""


@pytest.mark.parametrize("name", [*UNSELECTED, "loop"])
def test_a_workload_that_is_not_selected_stops_no_other(config, monkeypatch, tmp_path, name):
    path = config / f"workloads/{name}.yaml"
    if name == "loop":
        path.symlink_to(path)
    else:
        change = UNSELECTED[name]
        text = (config / "workloads/mlp.yaml").read_text().replace("name: pairs", "name: other")
        path.write_text(change if isinstance(change, str) else text.replace(*change, 1))
    shutil.copytree(code_fingerprint.PACKAGE / "data", tmp_path / "data", ignore=lambda *_: ["__pycache__"])
    (tmp_path / "data/half_written.py").write_text("def read(")
    monkeypatch.setattr(code_fingerprint, "PACKAGE", tmp_path)
    monkeypatch.setattr(code_fingerprint, "ROOT", tmp_path)
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


def test_a_data_set_of_two_workloads(config):
    text = (config / "workloads/mlp.yaml").read_text()
    (config / "workloads/mlp2.yaml").write_text(text.replace("rows: 1024", "rows: 9"))
    configured = load.config({"workloads": ["mlp"]})
    said = sentence(model_and_data.check_shared, configured, resolve.run(configured, "single", "mlp2"))
    assert "mlp2.yaml: another workload also prepares a data set pairs, with a different options.rows" in said


@pytest.mark.parametrize(("text", "word"), [("[1]", "list"), ('"x"', "str")])
def test_deepspeed_s_json(config, monkeypatch, text, word, tmp_path):
    monkeypatch.setattr(deepspeed, "ROOT", tmp_path)
    (tmp_path / "config/deepspeed/zero1.json").write_text(text)
    assert f"zero1.json is a {word}" in sentence(run_of, "mlp", "zero1")


def test_a_tp_that_does_not_divide_leaves_out_its_cell():
    config = load.config({"workloads": ["llama2"], "strategies": ["single", "tp"], "ranks_per_node": 3})
    planned, left_out = resolve.matrix(config)
    assert [run.strategy for run in planned] == ["single"]
    assert left_out["tp", "llama2"] == "tp 3 does not divide heads 4 of workload llama2; tp can be 1, 2."


@pytest.mark.parametrize(
    ("task", "options", "sample", "words"),
    [
        ("regression", {"inputs": 2, "outputs": 1}, ([1.0, 2.0], 3.0), ["y has the shape ()", "promises (1,)"]),
        ("regression", {"inputs": 3, "outputs": 1}, ([1.0, 2.0], [3.0]), ["x has the shape (2,)"]),
        ("regression", {"outputs": 1}, ([1.0], [3.0]), ["needs the key inputs", "shape"]),
        ("regression", {"inputs": 1, "outputs": 1}, ([float("nan")], [3.0]), ["x", "not finite"]),
        ("classification", {}, ([1.0], 0), ["needs the key channels"]),
        ("classification", {"channels": 1, "image_size": 2, "classes": 2}, ([1.0, 2.0], 0), ["an image"]),
        (
            "classification",
            {"channels": 1, "image_size": 2, "classes": 2},
            (np.zeros((1, 2, 2), np.uint8), -1),
            ["the label is -1"],
        ),
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


@pytest.mark.parametrize("args", [{"hiden": 4}, {"inputs": 6, "outputs": 2, "hidden": "four"}, {"inputs": -1}])
def test_arguments_that_a_model_does_not_take(args):
    assert sentence(models.create, "mlp", args).startswith("model mlp cannot be built with")
    assert "did you mean llama" in sentence(models.create, "lama", args)


def test_every_workload_s_file_describes_its_model():
    for name in load.names("workloads"):
        if not load.workload(name).model.startswith("hf:"):
            run = run_of(name, data="embedded")
            models.check_plan(run.model, build(run))


def test_a_tokenizer_of_another_kind(tmp_path):
    data = tiny_run("llama2").data.model_copy(update={"tokenizer": str(tmp_path), "name": "mine"})
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer of the tokenizers library" in sentence(encode, data, {"train": [("a",)]})


def test_weights_that_are_no_numbers_are_not_the_learning_rate_s_fault():
    assert "check the data, the initial weights" in sentence(step._stop_unless_finite, "loss", float("nan"), 0)
    assert "Lower recipe.optimizer.learning_rate" in sentence(step._stop_unless_finite, "loss", float("nan"), 1)


def test_a_manifest_that_was_edited(tiny_data, tmp_path):
    for change in ({"fingerprint": "0"}, {"files": {}}, {"files": None}):
        manifest = json.loads((tiny_data / "mlp/dataset.json").read_text()) | change
        (tmp_path / "dataset.json").write_text(json.dumps(manifest))
        assert "damaged or was edited" in sentence(store.verify, tmp_path, tiny_run("mlp").data)


@pytest.mark.parametrize("change", [{"ranks_per_node": 3}, {"mesh": {"foo": 2}}, {"schema_version": 2}])
def test_settings_of_another_version_or_whose_ranks_are_not_those_of_the_mesh(tmp_path, change):
    values = tiny_run("mlp", "ddp").model_dump(mode="json") | change
    (tmp_path / "run.json").write_text(json.dumps(values))
    assert "run.json" in sentence(read_run, tmp_path / "run.json")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([(1, 2)], "it returns a list."),
        (None, "it returns a NoneType."),
        (
            {"train": [(1,)], "validation": [(1,)], "test": np.ones((2, 2))},
            "split test, row 0: read(data, raw) in scripts/shardlab/data/pairs.py must return tuples, but this is a",
        ),
        (
            {"train": [1]},
            "data set pairs, split train, row 0: read(data, raw) in scripts/shardlab/data/pairs.py must "
            "return tuples, but this is a int.",
        ),
        ({"train": iter([(1,)])}, "it returns train: a list_iterator."),
        ({"train": "text"}, "it returns train: a str."),
        (
            {"train": [(1,)], "test": [(1,)]},
            "the split validation is empty; return more samples in scripts/shardlab/data/pairs.py",
        ),
    ],
)
def test_a_reader_that_returns_no_samples(monkeypatch, tmp_path, returned, words):
    from shardlab.data import pairs

    monkeypatch.setattr(pairs, "read", lambda data, raw: returned)
    with pytest.raises(UserError) as error:
        data_sets.read(tiny_run("mlp").data, tmp_path)
    assert words in str(error.value)


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


def test_a_name_with_a_line_break_is_one_line(config):
    assert "there is no workload 'ml\\np'" in sentence(run_of, "ml\np")
