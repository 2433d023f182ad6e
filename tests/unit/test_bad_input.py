"""Mistakes in settings and data: one sentence that names the key or file and what would work, never a traceback."""

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.common import build, tiny_run
from shardlab import models
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.errors import Unsupported, UserError
from shardlab.records.reports import TestReport, TrainReport
from shardlab.report import summary
from shardlab.settings import code_fingerprint, load, model_and_data, resolve
from shardlab.settings.config import Config
from shardlab.settings.types import Run, read_run

MLP = {"workloads": ["mlp"], "strategies": ["ddp"]}


def swept(values):
    return {"workloads": ["mnist"], "strategies": ["ddp"], "sweep": values}


def at_site(changes):
    return {"site": "test", "site_settings": changes}


CONFIGURATIONS = [
    ({"recipe": {"optimizer": {"learning_rate": float("inf")}}}, ["learning_rate", "finite number"]),
    ({"workloads": ["mlp", "mlp"]}, ["workloads", "mlp appears twice"]),
    ({"recipe": {"optimizer": {"momentum": 0.9}}}, ["config: recipe: `optimizer`: adamw takes no momentum"]),
    ({"sweep": {"tp": [2]}, "strategies": ["single", "zero1"]}, ["sweep: tp has no effect on single, zero1"]),
    ({"nodes": 2}, ["2 nodes are requested, but a run at site local can have at most 1"]),
    (MLP | {"recipe": {"global_batch_size": 1}}, ["1 has fewer samples than the 2 data-parallel ranks"]),
    (MLP | {"recipe": {"gradient_accumulation_steps": 32}}, ["samples", "set it to 16 or less"]),
    (MLP | {"recipe": {"dtype": "bfloat16", "ema_decay": 0.9}}, ["ema_decay: in dtype bfloat16 rounding leaves"]),
    (swept({"compile_backend": ["a/b"]}), ["becomes part of a file name"]),
    ({"workloads": ["mnist@seed=2@learning_rate=0.1"]}, ["must be written mnist@learning_rate=0.1@seed=2"]),
    (at_site({"slurm": {"acount": "x"}}), ["site_settings", "slurm.acount", "did you mean `account`?"]),
    (at_site({"slurm": {"runtime": 2}}), ["has 2 minutes and is asked to stop 120 s before the end"]),
    (at_site({"slurm": {"queue": ["big"]}}), ["queue: big is not one of queues (known: none; define it there)"]),
]
STRATEGIES = [
    ({"dp_shard": 3}, {}, UserError, ["do not divide the world of 2 ranks", "multiple of 3"]),
    ({"dp_shard": -1, "tp": 8, "min_ranks": 8}, {}, UserError, ["tp 8 does not divide heads 4", "tp can be 1, 2."]),
    ({"cpu_offload": True, "dp_replicate": -1}, {}, UserError, ["cpu_offload needs dp_shard or cp; add it, or remove"]),
    (
        {"dp_shard": -1, "tp": 2},
        {"nodes": 4, "ranks_per_node": 1},
        UserError,
        ["does not divide the 1 ranks of"],
    ),
    ({"pp": 2, "tp": 2, "sequence_parallel": True}, {"ranks_per_node": 4}, Unsupported, ["across pipeline stages"]),
    ({"cp": 3}, {"ranks_per_node": 3}, Unsupported, ["sequence_length 64", "into 6 pieces, 2 for each"]),
    ({"cp": 8, "context": "ulysses"}, {"ranks_per_node": 8}, Unsupported, ["heads 4", "can be 1, 2, 4"]),
    ({"single_process": "dp"}, {"recipe": {"compile": "blocks"}}, Unsupported, ["set recipe.compile to none"]),
    ({"dp_shard": -1}, {"recipe": {"precision": "fp16"}}, Unsupported, ["set recipe.precision to bf16"]),
    (
        {"dp_shard": -1, "ep": -1},
        {"workloads": ["moe"], "ranks_per_node": 3},
        Unsupported,
        ["ep 3 does not divide experts 8 of workload moe; ep can be 1, 2, 4, 8."],
    ),
]


def sentence(call, *arguments, error=UserError):
    """Return the error message, which must be one line."""
    with pytest.raises(error) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(("values", "words"), CONFIGURATIONS)
def test_a_configuration(values, words):
    said = sentence(lambda: resolve.matrix(load.config(values)))
    assert all(word in said for word in words), said


@pytest.mark.parametrize(("entry", "config", "error", "words"), STRATEGIES)
def test_a_strategy(site, strategy, entry, config, error, words):
    strategy("mine", **entry)
    workload = config.get("workloads", ["llama2"])[0]
    said = sentence(lambda: resolve.run(load.config(config), "mine", workload), error=error)
    assert all(word in said for word in words), said


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
        ("task: regression", "task: regression\ntask: regression", ["mlp.yaml", "`task` is duplicated", "line 5"]),
        ("  embedded:\n", "  hub:\n", ["config: data is embedded", "only hub"]),
    ],
)
def test_a_workload_s_file(config, old, new, words):
    path = config / "workloads/mlp.yaml"
    path.write_text(path.read_text().replace(old, new, 1), encoding="latin-1")
    said = sentence(run_of, "mlp", "tp")
    assert all(word in said for word in words), said


def test_a_workload_that_is_not_selected_stops_no_other(config):
    (config / "workloads/half.yaml").write_text("model: [")
    configured = load.config({"workloads": ["mlp"]})
    assert model_and_data.data_set(configured, "pairs").name == "pairs"
    assert "there is no model" in sentence(model_and_data.model, configured, "data/models/mine")
    assert sentence(run_of, "half"), "where it is selected, it is an error"


PICTURE, PICTURES = np.zeros((1, 2, 2), np.uint8), {"channels": 1, "image_size": 2, "classes": 2}
PAIRS, TEXTS = {"inputs": 2, "outputs": 1}, {"vocab_size": 300, "document_tokens": 9, "summary_tokens": 9}
SAMPLES = [
    ("regression", PAIRS, ([1.0, 2.0], 3.0), ["y has the shape ()", "promises (1,)"]),
    ("regression", PAIRS, ([None, 1.0], [3.0]), ["x has values that are not finite"]),
    ("classification", PICTURES, (np.zeros((2, 2, 3), np.uint8), 0), ["the image is uint8 (2, 2, 3)"]),
    (
        "classification",
        PICTURES,
        (Image.fromarray(np.zeros((2, 2), np.float32)), 0),
        ["has mode F, and only 8 bits per value"],
    ),
    ("classification", PICTURES, (PICTURE, 0.5), ["not an integer"]),
    ("classification", PICTURES, (PICTURE, 2), ["the label is 2, but the data set's shape promises 2 classes"]),
    ("language_modelling", TEXTS | {"sequence_length": 4}, (3,), ["it has 3, of type int", "is a text"]),
]


@pytest.mark.parametrize(("task", "options", "sample", "words"), SAMPLES)
def test_data_that_does_not_fit_its_task(tmp_path, task, options, sample, words):
    data = tiny_run("mlp").data.model_copy(update={"task": task, "options": options, "name": "mine"})
    splits = dict.fromkeys(("train", "validation", "test"), [sample] * 4)
    said = sentence(lambda: store.write(tmp_path, data, *encode(data, splits)))
    assert said.startswith("data set mine, split train, row 0: ")
    assert not list(tmp_path.glob("[!.]*"))
    assert all(word in said for word in words), said


def test_a_model_that_the_file_does_not_describe():
    run = tiny_run("mlp")
    for change, words in (
        ({"tensor": {"hiden": "column"}}, ["tensor: no submodule", "hiden", "hidden"]),
        ({"segments": 3}, ["segments", "says 3", "has 2"]),
    ):
        said = sentence(models.check_plan, run.model.model_copy(update=change), build(run))
        assert all(word in said for word in words), said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
QUICK = settings(
    deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


@QUICK
@given(st.dictionaries(st.sampled_from(sorted(Config.model_fields)) | st.text(max_size=9), JSON, max_size=4))
def test_any_configuration(values):
    with suppress(UserError):
        runs, _ = resolve.matrix(load.config(MLP | {"strategies": ["single", "ddp"]} | values))
        assert all(isinstance(run, Run) for run in runs)


@QUICK
@given(st.data())
def test_a_damaged_file(data):
    whole = tiny_run("mlp", "ddp").model_dump(mode="json")
    key = data.draw(st.sampled_from(sorted(whole)))
    text = json.dumps(whole | {key: data.draw(JSON)})
    text = text[: data.draw(st.sampled_from([len(text), len(text) // 2, 0]))]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        path = results / "ddp/mlp/train.json"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        for kind in (TrainReport, TestReport):
            with pytest.raises(UserError, match=r"train.json.*make it again"):
                kind.read(path, "make it again")
        with suppress(UserError):
            assert isinstance(read_run(path), Run)
        (results / "ddp/mlp.done").touch()
        row = summary.collect([tiny_run("mlp", "ddp")], results, 0)
        assert row.status[0].startswith("damaged: ")
        assert row.test_loss.isna().all()
