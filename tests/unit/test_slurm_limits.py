"""Consequences of a cluster's limits and preemption for a training, and of client commands that never end."""

import time

import pytest
import snakemake_executor_plugin_slurm  # noqa: F401 (its import starts `which`)

from helpers.common import program
from shardlab.errors import UserError
from shardlab.runs import run_status, slurm
from shardlab.runs.slurm_limits import means, trial
from shardlab.runs.slurm_request import Request
from shardlab.settings.sites import Site

BATCH = {"PartitionName": "batch", "MaxTime": "02:00:00", "PreemptMode": "REQUEUE", "GraceTime": "10"}
CONFIG = {"JobRequeue": "1", "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "KillWait": "30 sec"}


@pytest.mark.parametrize(
    ("partition", "config", "words"),
    [
        ({}, {}, ["requests 60 min of at most 120; 120 s before", "is requeued", "warned 10 s before"]),
        ({"GraceTime": "0"}, {}, ["killed without notice", "checkpoint_interval_minutes", "then it is requeued"]),
        ({"PreemptMode": "CANCEL"}, {}, ["(CANCEL)", "then it ends, and Snakemake submits it again"]),
        ({}, {"JobRequeue": "0"}, ["it saves and ends, and Snakemake submits it again"]),
        ({}, {"KillWait": "25 sec"}, ["does not end after 25 s", "stop_seconds, now 25"]),
    ],
)
def test_what_it_means(partition, config, words):
    said, wrong = means(Site(slurm={}), 60, BATCH | partition, CONFIG | config)
    assert all(word in " ".join(said) for word in words), said
    assert wrong == []
    _, wrong = means(Site(slurm={}), 121, BATCH, CONFIG)
    assert wrong == ["partition batch limits jobs to 120 min, but slurm.runtime is 121; lower it to 120"]


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


@pytest.mark.parametrize(
    ("text", "said", "wrong"),
    [
        ("allocation failure: Invalid account or account/partition combination specified", None, "refuses ddp x mlp"),
        ("allocation failure: Required node not available (down, drained or reserved)", "start: unknown for ddp", None),
    ],
)
def test_a_job_that_slurm_would_refuse(monkeypatch, tmp_path, text, said, wrong):
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path / "sbatch", f"echo '{text}' >&2; exit 1")
    site = Site(cpus_per_rank=2, slurm={"gpus": "gres"})
    answer = trial([Request("ddp x mlp", slurm.resources(site, "train", 1, 4))])
    reason = text.removeprefix("allocation failure: ")
    for sentences, part in ((answer.said, said), (answer.wrong, wrong)):
        assert len(sentences) == (part is not None)
        assert all(part in sentence and reason in sentence for sentence in sentences)
