"""A workload under one strategy of each kind through Slurm, in the image; then what the user does next with it.

Other strategies and workloads differ from these in nothing that Slurm or the image could see; tests/parity has them.
"""

import shlex

import pandas as pd
import pytest
import yaml

from helpers.common import ROOT
from helpers.documents import readme
from login import RECIPE, gpus, here
from shardlab.files import sha256
from shardlab.report.summary import judged
from shardlab.settings import load
from shardlab.settings.mesh import ParallelDims

pytestmark = pytest.mark.timeout(1800)
WORKLOADS = ["llama2"]
STRATEGIES = ["single", "ddp", "fsdp_tp", "zero1"]
"""One process, two ranks, four ranks, DeepSpeed."""
TWINS = "noise_floor_runs=2"
ON_TWO_NODES = "fsdp_ep_cp@nodes=2"
"""On moe: the ranks of cp inside a node, those of dp_shard and ep on both."""
MATRIX = [f"workloads=[{','.join(WORKLOADS)}]", f"strategies=[{','.join(STRATEGIES)}]", TWINS]


@pytest.fixture(scope="module")
def finished(base):
    """The project after `all`, as the README says it, and after further runs on two nodes."""
    *_, call = readme(ROOT, "On your cluster")
    tests = [f"results/{strategy}/moe/test.json" for strategy in ("single", ON_TWO_NODES)]
    words = here(call).replace(" -- all", f" {shlex.join([*MATRIX, RECIPE, '--', 'all', *tests])}")
    base.run("bash", "-c", f"source .venv/bin/activate && {words}", timeout=1700)
    return base


@pytest.fixture(scope="module")
def summary(finished):
    return pd.read_csv(finished.path / "results/summary.csv").set_index(["strategy", "workload"])


def test_every_run_is_done_and_equal(summary):
    assert set(summary.index) == {(strategy, workload) for strategy in STRATEGIES for workload in WORKLOADS}
    assert set(summary.status) == {"done"}
    assert summary.rel_diff.max() < 1e-5, summary.rel_diff.sort_values().tail(5)


def test_context_parallel_inside_nodes_and_fsdp_between_them_is_equal(finished):
    report = finished.json(f"results/{ON_TWO_NODES}/moe/train.json")
    assert (report["mesh"]["dp_shard"], report["mesh"]["cp"]) == (2, 2)
    hosts, stride = report["hosts"], ParallelDims(report["mesh"]).stride("cp")
    groups = [{hosts[rank], hosts[rank + stride]} for rank in range(4) if rank // stride % 2 == 0]
    assert all(len(group) == 1 for group in groups), "a context-parallel group spans nodes"
    assert groups[0] != groups[1], "all ranks are on one node"
    names = ["single", ON_TWO_NODES.partition("@")[0]]
    given = {"site": "test", "workloads": ["moe"], "strategies": names, "sweep": {"nodes": [2]}}
    table, _ = judged(load.config(given | yaml.safe_load(RECIPE.replace("=", ": "))), finished.path / "results")
    assert table.set_index("strategy").equality.to_dict() == {"single": "equal", ON_TWO_NODES: "equal"}


def test_every_report_names_its_job_node_and_image(finished, summary):
    image = finished.json("containers/train.image.json")
    for strategy, workload in summary.index:
        report = finished.json(f"results/{strategy}/{workload}/train.json")
        assert report["image_digest"] == image["sha256"]
        assert report["image_labels"]["shardlab.lock.sha256"] == sha256(ROOT / "envs/train.txt")
        assert report["slurm_job_id"].isdigit()
        assert set(report["hosts"]) <= {"n1", "n2"}
        assert len(report["hosts"]) == report["world_size"]


def test_each_job_gets_the_gpus_of_its_ranks(finished, started, summary):
    requested = gpus(since=started)
    for strategy, workload in summary.index:
        report = finished.json(f"results/{strategy}/{workload}/train.json")
        assert requested[report["slurm_job_id"]] == report["world_size"]
    assert set(summary.world_size) == {1, 2, 4}


def test_a_new_image_trains_nothing_again_and_a_changed_definition_builds_one(finished):
    report = finished.path / "containers/train.image.json"
    report.touch()
    jobs = finished.snakemake("all", flags=["--dry-run"], config=MATRIX).stdout
    assert "Training" not in jobs
    definition = finished.path / "containers/train.def"
    definition.write_text(definition.read_text() + "\n")
    assert "Building the image" in finished.snakemake("containers/train.image.json", flags=["--dry-run"]).stdout
