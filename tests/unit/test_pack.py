"""One job for many runs: what is submitted; what jobs request at most."""

import pytest

from shardlab.cli.pack import submission
from shardlab.errors import UserError
from shardlab.runs import slurm, slurm_request
from shardlab.runs.slurm_request import Request
from shardlab.settings import load
from shardlab.settings.sites import Slurm
from shardlab.workflow.call_runs import CallRuns

MATRIX = {"workloads": ["mlp"], "strategies": ["single", "ddp", "fsdp_tp"]}


def call(**values):
    given = {"site": "jureca"} | MATRIX | values
    return CallRuns(load.read_yaml(load.CONFIG / "config.yaml") | given, ["all"])


def test_the_job_has_a_whole_node_with_a_warning_before_its_end():
    words, script = submission(call(ranks_per_node=2), 90, ["--", "all"])
    assert words[0] == "sbatch"
    assert {"--nodes=1", "--gres=gpu:4", "--requeue", "--signal=B:USR1@180"} < set(words)
    assert words[words.index("-t") + 1] == "90"
    assert "--cores 128 --resources devices=4 -- all &" in script
    assert 'scontrol requeue "$SLURM_JOB_ID"' in script


@pytest.mark.parametrize(
    ("values", "minutes", "sentence"),
    [
        ({"nodes": 2}, None, r"ddp x mlp needs 2 nodes, and a pack has one; run it with --profile slurm"),
        ({}, 3, r"3 min are too short, as the last 180 s start nothing; raise --minutes"),
        ({"site": "local"}, None, r"site local has no slurm: and srun:"),
    ],
)
def test_what_does_not_fit_is_one_sentence(values, minutes, sentence):
    with pytest.raises(UserError, match=sentence):
        submission(call(**values), minutes, [])


def test_a_run_does_not_requeue_the_job_of_the_others(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "client", lambda words: pytest.fail(f"asked Slurm: {words}"))
    monkeypatch.setenv(slurm.PACKED, "1")
    assert slurm.requeue(slurm.TIME_LIMIT) is False


def test_what_a_call_requests_in_one_sentence():
    """In the unit of the queue that Slurm is asked for."""
    parts = {"partition": "parts", "billing": {"factor": 0.25, "unit": "node-hours"}}
    whole = {"partition": "whole", "qos": "normal", "billing": {"per": "node"}}
    asked = {"nodes": 2, "gres": "gpu:4", "runtime": 30, "slurm_partition": "parts"}
    requests = [Request("train", asked)] * 2 + [Request("train", asked | {"slurm_partition": "whole", "qos": "normal"})]
    site = Slurm(gpus="gres", queues={"parts": parts, "whole": whole})
    assert slurm_request.sentence(requests, "Trainings", site, tries=2) == (
        "Trainings request at most 12.0 GPU-hours, charged as 3.0 node-hours: the time limits of 3 jobs; "
        "6.0 node-hours if every job is tried 2 times."
    )
