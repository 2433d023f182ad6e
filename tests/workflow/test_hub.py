"""Data and models of the hub, with the real client and a small hub on loopback."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from helpers.common import ROOT, Tree, until
from helpers.hub_files import articles, environment, repository
from helpers.hub_server import Hub
from shardlab.files import COMMAND
from shardlab.settings import load, model_and_data


@pytest.fixture
def hub():
    text = {"train": articles(120), "validation": articles(20), "test": articles(20)}
    server = Hub({"EdinburghNLP/xsum": repository("default", text)})
    yield server
    server.close()


def without_network():
    """Command prefix that gives a process a network of loopback only; empty where that is not allowed."""
    prefix = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        return []
    return prefix


def test_from_the_hub_to_the_summary_without_a_call_after_prepare(hub, tree):
    config = ["--config", "data=hub", "workloads=[xsum]", "strategies=[single]", "recipe={max_steps: 2}", "--"]
    prepared = "data/prepared/xsum/dataset.json"
    tree.snakemake(*config, prepared, **environment(hub))
    assert any("parquet" in path for _, path, _ in hub.calls)
    assert tree.json(prepared)["samples"] == {"train": 120, "validation": 20, "test": 20}
    calls = len(hub.calls)
    local = ["snakemake", "--profile", "workflow/profiles/local"]
    tree.run(*without_network(), *local, *config, "results/single/xsum/test.json", **environment(hub))
    assert hub.calls[calls:] == []
    assert tree.json("results/single/xsum/test.json")["samples"] == 20


@pytest.mark.long
@pytest.mark.skipif(not without_network(), reason="needs the right to take the network from a process")
def test_a_login_node_without_internet_is_served_from_another_machine_as_the_document_says(hub, make_tree, tmp_path):
    """`make setup` from a folder of wheels; `all`, here without Slurm, from the copied data."""
    text = (ROOT / "docs/cluster.md").read_text().partition("### A login node without internet\n")[2]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)[:2]
    (_, _, wheels, data, copy), (_, setup, _, everything) = (block.splitlines() for block in blocks)
    small = "'workloads=[xsum]' 'strategies=[single,ddp]' 'recipe={max_steps: 2}' noise_floor_runs=0"
    elsewhere, login = make_tree(tmp_path / "elsewhere"), tmp_path / "login"
    elsewhere.run("sh", "-c", wheels)
    elsewhere.run("sh", "-c", data.replace("data=hub", f"data=hub {small}"), **environment(hub))
    login.mkdir()
    elsewhere.run("sh", "-c", copy.replace("LOGIN-NODE:/PATH", str(login)))
    there, calls = Tree(login / "shardlab"), len(hub.calls)
    prepared = (there.path / "data/prepared/xsum/dataset.json").stat().st_mtime_ns
    there.run(*without_network(), "bash", "-c", setup, PIP_CONFIG_FILE=os.devnull)
    assert "--profile" in there.run(*without_network(), ".venv/bin/snakemake", "--help").stdout
    call = everything.replace("--profile slurm", "--profile workflow/profiles/local").replace("marenostrum5", "local")
    there.run(*without_network(), "sh", "-c", call.replace("data=hub", f"data=hub {small}"), **environment(hub))
    assert (there.path / "results/report.html").exists()
    assert hub.calls[calls:] == []
    assert (there.path / "data/prepared/xsum/dataset.json").stat().st_mtime_ns == prepared


def test_a_killed_download_is_none_and_another_call_completes_it(hub, tmp_path):
    hub.stalled.add("default/train-00000-of-00001.parquet")
    data = model_and_data.data_set(load.config({"data": "hub"}), "xsum").model_dump_json()
    command = [sys.executable, str(COMMAND), "download", "--data", data, "--output", str(tmp_path)]
    call = {"env": os.environ | environment(hub), "capture_output": True, "text": True, "timeout": 120}
    killed = subprocess.Popen(command, env=call["env"])
    until(lambda: any(tmp_path.rglob("*.incomplete")))
    busy = subprocess.run(command, **call)
    assert busy.returncode == 1
    assert f"is being downloaded by process {killed.pid}" in busy.stderr
    killed.kill()
    killed.wait()
    assert not (tmp_path / "download.json").exists(), "half a download must not pass for a whole one"
    done = subprocess.run(command, **call)
    assert done.returncode == 0, done.stderr
    assert not any(tmp_path.rglob("*.incomplete"))
