"""Runs over several nodes: who runs where, what the nodes can reach, and the look before."""

import re
import shlex
import subprocess

import pytest

import cluster
from helpers.common import ROOT
from helpers.hub_files import articles, environment, repository
from helpers.hub_server import Hub
from login import now, sacct

TWO = ["nodes=2"]
ACCOUNTED = ("JobID", "NNodes", "NodeList", "AllocTRES", "State", "Start", "End")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def pair(make_copy):
    """Two runs on the same two nodes at once, which meet at an interface: their sacct rows, reports and logs."""
    with make_copy("pair") as learner:
        config = [*TWO, "site_settings={srun: {interface: eth0}}", "recipe={max_steps: 40}"]
        since = now()
        learner.snakemake("results/fsdp_tp/llama2.done", "results/ddp/llama2.done", config=config)
        rows = {row["JobID"]: row for row in sacct(*ACCOUNTED, since=since)}
        names = ("fsdp_tp/llama2", "ddp/llama2")
        reports = [learner.json(f"results/{name}/train.json") for name in names]
        logs = [(learner.path / f"results/{name}/logs/train.log").read_text() for name in names]
        yield [(rows[report["slurm_job_id"]], report, log) for report, log in zip(reports, logs, strict=True)]


def test_fsdp_tp_on_two_nodes_keeps_its_tensor_parallel_groups_inside_nodes(pair):
    job, report, _ = pair[0]
    assert report["mesh"] == {"dp_shard": 2, "tp": 2}
    assert (job["NNodes"], job["State"]) == ("2", "COMPLETED")
    assert "gres/gpu=4" in job["AllocTRES"].split(",")
    groups = [report["hosts"][start : start + 2] for start in (0, 2)]
    assert all(len(set(group)) == 1 for group in groups), "a tensor-parallel group spans nodes"
    assert {group[0] for group in groups} == {"n1", "n2"}


def test_two_runs_at_once_on_the_same_nodes_that_meet_at_an_interface(pair):
    (one, *_), (two, *_) = pair
    assert one["NodeList"] == two["NodeList"] == "n[1-2]"
    assert max(one["Start"], two["Start"]) < min(one["End"], two["End"]), "they did not run at the same time"
    for _, report, log in pair:
        assert set(report["hosts"]) == {"n1", "n2"}
        assert "address show dev eth0" in log


def test_short_runs_share_a_job(learner):
    """Snakemake's groups, by the flags of docs/your-own.md: one after the other, with what one of them needs."""
    page = (ROOT / "docs/your-own.md").read_text()
    flags = shlex.split(re.search(r"(--groups .*?) --config", page, flags=re.DOTALL)[1].replace("\\\n", " "))
    names = [f"results/single/mlp@seed={seed}" for seed in (1, 2, 3)]
    since = now()
    learner.snakemake(*(f"{name}.done" for name in names), flags=flags)
    reports = [learner.json(f"{name}/train.json") for name in names]
    (job,) = {report["slurm_job_id"] for report in reports}
    (row,) = [row for row in sacct(*ACCOUNTED, since=since) if row["JobID"] == job]
    assert (row["NNodes"], row["State"]) == ("1", "COMPLETED")
    assert "gres/gpu=1" in row["AllocTRES"].split(",")


def test_nodes_have_no_network_and_the_hub_path_works(learner):
    on_node = "ip route; getent hosts pypi.org; timeout 2 bash -c '</dev/tcp/192.0.2.1/80' && echo reached"
    seen = learner.run("srun", "--account=teaching", "bash", "-c", on_node, check=False).stdout
    assert "10.77.0.0/24" in seen
    assert not any(word in seen for word in ("default", "pypi.org", "reached"))

    splits = {"train": articles(120), "validation": articles(20), "test": articles(20)}
    hub = Hub({"EdinburghNLP/xsum": repository("default", splits)})
    try:
        learner.snakemake("data/prepared/xsum/dataset.json", config=["data=hub"], **environment(hub))
        assert hub.calls, "the login node downloads"
        before = len(hub.calls)
        learner.snakemake("results/ddp/xsum.done", config=["data=hub", "recipe={max_steps: 3}"], **environment(hub))
        assert len(hub.calls) == before, "something after prepare asked the hub"
    finally:
        hub.close()


def test_preflight_says_that_the_site_is_ready(learner):
    seen = learner.snakemake("preflight", config=TWO).stdout
    assert re.search(r"start: .* \(2 x 2 GPUs\): .* to start at 20.* in partition batch", seen)
    assert "limits of batch: GraceTime=10, MaxTime=02:00:00, PreemptMode=REQUEUE, " in seen
    assert "folder: " in seen
    assert "node n1: Python 3.11" in seen
    assert "node n2: Python 3.11" in seen
    assert "ranks on n1, n1, n2, n2: all collectives are correct" in seen
    assert "preflight: site test is ready for 2 x 2 ranks." in seen


def test_down_leaves_nothing(box):
    """Last in this file: down, then up again, and how long that takes."""
    cluster.down()
    left = subprocess.run(["pgrep", "--list-full", "slurmctld|slurmd|munged|mariadbd"], text=True, capture_output=True)
    assert left.stdout == ""
    assert "n1" not in subprocess.run(["ip", "netns", "list"], text=True, capture_output=True).stdout
    assert not cluster.HOME.exists()
    assert not (cluster.SLURM / "slurm.conf").exists()
    cluster.up(nodes=2, gpus=4, cpus=4)
