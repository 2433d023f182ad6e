"""One allocation for many runs: what is submitted, and how its steps share the nodes."""

import pytest

from shardlab.cli.pack import submission
from shardlab.errors import UserError
from shardlab.runs import slurm
from shardlab.settings import load
from shardlab.workflow.call_runs import CallRuns

MATRIX = {"workloads": ["mlp"], "strategies": ["single", "ddp", "fsdp_tp"]}


def call(**values):
    given = {"site": "jureca"} | MATRIX | values
    return CallRuns(load.read_yaml(load.CONFIG / "config.yaml") | given, ["all"])


def test_the_allocation_is_whole_nodes_with_a_warning_before_its_end():
    words, script = submission(call(ranks_per_node=2), None, 90, ["--", "all"])
    assert words[0] == "sbatch"
    assert {"--nodes=1", "--gres=gpu:4", "--requeue", "--signal=B:USR1@180"} < set(words)
    assert words[words.index("-t") + 1] == "90"
    assert "--cores 128 --resources devices=4 -- all &" in script
    assert 'scontrol requeue "$SLURM_JOB_ID"' in script


@pytest.mark.parametrize(
    ("values", "nodes", "minutes", "sentence"),
    [
        ({"nodes": 2}, 1, None, r"ddp x mlp needs 2 nodes; raise --nodes to 2"),
        ({}, None, 3, r"3 min are too short, as the last 180 s start nothing; raise --minutes"),
        ({"site": "local"}, None, None, r"site local has no slurm: and srun:"),
    ],
)
def test_what_does_not_fit_is_one_sentence(values, nodes, minutes, sentence):
    with pytest.raises(UserError, match=sentence):
        submission(call(**values), nodes, minutes, [])


def test_a_run_does_not_requeue_the_job_of_the_others(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "client", lambda words: pytest.fail(f"asked Slurm: {words}"))
    monkeypatch.setenv(slurm.PACKED, "1")
    assert slurm.requeue(slurm.TIME_LIMIT) is False


def test_a_refused_step_waits_while_others_run(monkeypatch, tmp_path):
    monkeypatch.setenv(slurm.PACKED, "1")
    monkeypatch.setattr(slurm, "answer_or_none", lambda words: "7.extern\n7.0\n")
    refused = "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification\n"
    for more, waits in (("", True), ("step 1/8  loss 4\nTraceback\n", False)):
        (tmp_path / "log").write_text(refused + more)
        assert slurm.has_to_wait(tmp_path / "log") is waits
