"""Data and models of the hub, with the real client and a small hub on loopback."""

import os
import random
import shutil
import subprocess
import sys
import time

import pytest
from safetensors.numpy import load_file

from helpers import transformers_models
from helpers.hub_files import articles, environment, pictures, repository
from helpers.hub_server import Hub
from shardlab.files import COMMAND
from shardlab.settings import load, model_and_data


@pytest.fixture
def hub():
    server = Hub(
        {
            "ylecun/mnist": repository("mnist", {"train": pictures(5100), "test": pictures(40)}),
            "EdinburghNLP/xsum": repository(
                "default", {"train": articles(120), "validation": articles(20), "test": articles(20)}
            ),
        }
    )
    yield server
    server.close()


def program(name, data, *arguments, **variables):
    command = [sys.executable, COMMAND, name, "--data", data.model_dump_json(), *arguments]
    return subprocess.run(
        list(map(str, command)), env=os.environ | variables, capture_output=True, text=True, timeout=120
    )


def data_set(name, **hub_changes):
    data = model_and_data.data_set(load.config({"data": "hub"}), name)
    return data.model_copy(update={"hub": data.hub.model_copy(update=hub_changes)})


def without_network():
    """Command prefix that gives a process a network of loopback only; empty where that is not allowed."""
    prefix = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        return []
    return prefix


def test_from_the_hub_to_the_summary_without_a_call_after_prepare(hub, tree):
    config = ["--config", "data=hub", "workloads=[mnist,xsum]", "strategies=[single]", "recipe={max_steps: 2}", "--"]
    prepared = ["data/prepared/mnist/dataset.json", "data/prepared/xsum/dataset.json"]
    tree.snakemake(*config, *prepared, **environment(hub))
    assert any("parquet" in path for _, path, _ in hub.calls)
    assert tree.json(prepared[0])["samples"] == {"train": 100, "validation": 5000, "test": 40}
    assert tree.json(prepared[1])["samples"] == {"train": 120, "validation": 20, "test": 20}
    calls = len(hub.calls)
    local = ["snakemake", "--profile", "workflow/profiles/local"]
    tree.run(*without_network(), *local, *config, "results/single/xsum/test.json", **environment(hub))
    assert hub.calls[calls:] == []
    assert tree.json("results/single/xsum/test.json")["samples"] == 20


PRETRAINED = """
model: hf:tester/t5-small
task: summarization
blocks: [encoder.block.*, decoder.block.*]
data:
  embedded: {name: docstrings_mine, reader: package_docstrings}
sizes:
  small:
    data: {rows: 100, document_tokens: 24, summary_tokens: 8}
    recipe: {max_steps: 2}
"""


@pytest.mark.long
def test_a_model_of_the_hub_from_the_download_to_the_summary(hub, tree, tmp_path):
    files = transformers_models.make("t5", tmp_path / "t5").iterdir()
    hub.repositories["tester/t5-small"] = {path.name: path.read_bytes() for path in files} | {"rust_model.ot": b"no"}
    (tree.path / "config/workloads/mine.yaml").write_text(PRETRAINED)
    config = ["--config", "workloads=[mine]", "strategies=[fsdp]", "--"]
    tree.snakemake(*config, "data/prepared/docstrings_mine/dataset.json", **environment(hub))
    folder = tree.path / "data/models/tester--t5-small"
    assert (folder / "model.safetensors").read_bytes() == hub.repositories["tester/t5-small"]["model.safetensors"]
    assert not (folder / "rust_model.ot").exists()
    assert tree.json("data/prepared/docstrings_mine/dataset.json")["special_tokens"] == {"pad": 0, "start": 0, "end": 1}
    calls = len(hub.calls)
    tree.run(
        *without_network(), "snakemake", "--profile", "workflow/profiles/local", *config, "all", **environment(hub)
    )
    assert hub.calls[calls:] == []
    report = tree.json("results/fsdp/mine/test.json")
    assert report["loss"] < report["untrained_loss"]
    given = load_file(folder / "model.safetensors")
    assert tree.json("results/fsdp/mine/train.json")["parameters"] == sum(value.size for value in given.values())


def test_a_model_without_a_network_is_one_sentence(tree):
    (tree.path / "config/workloads/mine.yaml").write_text(PRETRAINED)
    target = "data/models/tester--t5-small/download.json"
    done = tree.snakemake("--config", "workloads=[mine]", "--", target, check=False, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 1
    log = (tree.path / "results/logs/download_model/tester--t5-small.log").read_text()
    assert "error: model tester/t5-small at main could not be downloaded" in log


def test_prepare_alone_makes_no_call(hub, tmp_path):
    data = data_set("xsum")
    assert program("download", data, "--output", tmp_path / "raw", **environment(hub)).returncode == 0
    calls = len(hub.calls)
    done = program("prepare", data, "--raw", tmp_path / "raw", "--output", tmp_path / "out", **environment(hub))
    assert done.returncode == 0, done.stderr
    assert hub.calls[calls:] == []


TRAIN, TEST = (f"wikitext-2-raw-v1/{split}-00000-of-00001.parquet" for split in ("train", "test"))


@pytest.fixture
def large(hub):
    """A data set of some 25 MB: the client writes in pieces of 10 MB. Returns its repository."""
    rows = [random.Random(i).randbytes(50_000).hex() for i in range(500)]
    splits = {"train": {"text": rows}, "validation": {"text": ["a b"]}, "test": {"text": ["c d"]}}
    hub.repositories["Salesforce/wikitext"] = repository("wikitext-2-raw-v1", splits)
    return hub.repositories["Salesforce/wikitext"]


def ranges(hub, path):
    """The Range header of each GET of a file."""
    return [requested for method, called, requested in hub.calls if method == "GET" and called.endswith(path)]


def test_a_killed_download_goes_on_with_what_was_not_finished(hub, large, tmp_path):
    hub.stalled.add(TEST)
    command = [sys.executable, COMMAND, "download", "--data", data_set("wikitext").model_dump_json()]
    killed = subprocess.Popen([*map(str, command), "--output", str(tmp_path)], env=os.environ | environment(hub))
    deadline = time.monotonic() + 60
    while not (tmp_path / "files" / TRAIN).exists() or not any(tmp_path.rglob("*.incomplete")):
        assert time.monotonic() < deadline, "one file never arrived, or the other was never asked for"
        time.sleep(0.05)
    busy = program("download", data_set("wikitext"), "--output", tmp_path, **environment(hub))
    assert busy.returncode == 1
    assert f"is being downloaded by process {killed.pid}" in busy.stderr
    killed.kill()
    killed.wait()
    assert any(tmp_path.rglob("*.incomplete"))
    assert not (tmp_path / "download.json").exists(), "half a download must not pass for a whole one"

    done = program("download", data_set("wikitext"), "--output", tmp_path, **environment(hub))
    assert done.returncode == 0, done.stderr
    assert (len(ranges(hub, TRAIN)), len(ranges(hub, TEST))) == (1, 2)
    assert not any(tmp_path.rglob("*.incomplete"))


def test_a_file_that_is_not_the_pinned_one_is_refused(hub, tmp_path):
    done = program("download", data_set("xsum", fingerprint="0" * 64), "--output", tmp_path / "raw", **environment(hub))
    assert done.returncode == 1
    assert "error: data set xsum: the files of EdinburghNLP/xsum have the fingerprint" in done.stderr
    assert not (tmp_path / "raw" / "download.json").exists()


def test_a_branch_that_moved_is_refused(hub, tmp_path):
    raw = tmp_path / "raw"
    assert program("download", data_set("xsum"), "--output", raw, **environment(hub)).returncode == 0
    (raw / "download.json").unlink()  # as Snakemake does before it runs the rule again
    hub.push(
        "EdinburghNLP/xsum",
        repository("default", {"train": articles(121), "validation": articles(20), "test": articles(20)}),
    )
    done = program("download", data_set("xsum"), "--output", raw, **environment(hub))
    assert done.returncode == 1
    assert "changed since the first download" in done.stderr
    assert not (raw / "download.json").exists()


def test_a_file_changed_after_the_download_is_refused_by_prepare(hub, tmp_path):
    raw = tmp_path / "raw"
    assert program("download", data_set("xsum"), "--output", raw, **environment(hub)).returncode == 0
    changed = next(raw.rglob("train*.parquet"))
    changed.write_bytes(changed.read_bytes()[:-8] + b"damaged!")
    done = program("prepare", data_set("xsum"), "--raw", raw, "--output", tmp_path / "out")
    assert done.returncode == 1
    assert "is not the file that was downloaded" in done.stderr
    assert not (tmp_path / "out").exists()


def test_no_network_is_one_sentence(tmp_path):
    done = program("download", data_set("xsum"), "--output", tmp_path / "raw", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "could not be downloaded" in done.stderr
    assert "data=embedded" in done.stderr


def test_prepare_without_download_says_so(tmp_path):
    done = program("prepare", data_set("xsum"), "--raw", tmp_path / "raw", "--output", tmp_path / "out")
    assert done.returncode == 1
    assert "download.json is missing" in done.stderr
