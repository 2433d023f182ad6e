"""What Slurm says of jobs and partitions before a call, client commands that never end; one job for many runs."""

import time

import pytest
import snakemake_executor_plugin_slurm  # noqa: F401 (its import starts `which`)

from helpers.common import program
from shardlab.cli.pack import submission
from shardlab.errors import UserError
from shardlab.runs import run_status, slurm
from shardlab.runs.slurm_request import Request, sentence, trial
from shardlab.settings import load
from shardlab.settings.sites import Site, Slurm
from shardlab.workflow.call_runs import CallRuns


def test_a_figure_that_slurm_does_not_give_is_left_out_but_whether_a_job_trains_not_guessed(monkeypatch, tmp_path):
    """Client commands sleep much longer than they are waited for."""
    for name in ("scontrol", "sinfo", "squeue"):
        program(tmp_path / name, "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "PATIENCE", 0.1, raising=False)
    monkeypatch.setattr(slurm, "PAUSES", (0,))
    began = time.monotonic()
    assert (slurm.requeue(slurm.TIME_LIMIT), slurm.seconds_left(), run_status.queue(tmp_path)) == (False, None, {})
    with pytest.raises(UserError, match="Slurm does not answer"):
        slurm.in_queue("Slurm job 8")
    assert time.monotonic() - began < 60


def test_a_job_that_slurm_would_refuse(monkeypatch, tmp_path):
    """In sbatch's own words; one whose nodes are down would wait. Of one that it takes: its start, its limits."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    request = Request("ddp x mlp", slurm.resources(Site(cpus_per_rank=2, slurm={"gpus": "gres"}), "train", 1, 4))
    reason = "allocation failure: Invalid account or account/partition combination specified"
    program(tmp_path / "sbatch", f"echo '{reason}' >&2; exit 1")
    said, (wrong,) = trial([request])
    assert said == []
    assert wrong.startswith(f"Slurm refuses ddp x mlp (1 x 4 GPUs): {reason}; the keys ")
    assert wrong.rpartition("It was asked: ")[2].startswith("sbatch ")
    reason = "allocation failure: Required node not available (down, drained or reserved)"
    program(tmp_path / "sbatch", f"echo '{reason}' >&2; exit 1")
    assert trial([request]) == ([f"start: unknown for ddp x mlp (1 x 4 GPUs): {reason}"], [])
    starts = "sbatch: Job 5 to start at 2026-01-01T00:00:00 using 8 processors on nodes n1 in partition batch"
    program(tmp_path / "sbatch", f"echo '{starts}' >&2")
    shown = "PartitionName=batch\n   MaxTime=02:00:00 MinNodes=0\n   GraceTime=10 PreemptMode=REQUEUE"
    program(tmp_path / "scontrol", f"[ $2 = config ] && echo 'KillWait                = 30 sec' || echo '{shown}'")
    limits = "limits of batch: MaxTime=02:00:00, GraceTime=10, PreemptMode=REQUEUE, KillWait = 30 sec"
    assert trial([request]) == ([f"start: ddp x mlp (1 x 4 GPUs): {starts}", limits], [])


MATRIX = {"workloads": ["mlp"], "strategies": ["single", "ddp", "fsdp_tp"]}


def call(**values):
    given = {"site": "jureca"} | MATRIX | values
    return CallRuns(load.read_yaml(load.CONFIG / "config.yaml") | given, ["all"])


def test_a_run_of_two_nodes_does_not_fit_into_a_pack():
    with pytest.raises(UserError, match="ddp x mlp needs 2 nodes, and a pack has one; run it with --profile slurm"):
        submission(call(nodes=2), None, [])


def test_the_job_has_a_whole_node_with_a_warning_before_its_end():
    words, script = submission(call(ranks_per_node=2), 90, ["--", "all"])
    assert words[0] == "sbatch"
    assert {"--nodes=1", "--gres=gpu:4", "--requeue", "--signal=B:USR1@180"} < set(words)
    assert words[words.index("-t") + 1] == "90"
    assert "--cores 128 --resources devices=4 -- all &" in script
    assert 'scontrol requeue "$SLURM_JOB_ID"' in script


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
    assert sentence(requests, "Trainings", site, tries=2) == (
        "Trainings request at most 12.0 GPU-hours, charged as 3.0 node-hours: the time limits of 3 jobs; "
        "6.0 node-hours if every job is tried 2 times."
    )
