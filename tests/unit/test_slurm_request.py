"""What Slurm says of jobs and partitions before a call, and client commands that never end."""

import time

import pytest
import snakemake_executor_plugin_slurm  # noqa: F401 (its import starts `which`)

from helpers.common import program
from shardlab.errors import UserError
from shardlab.runs import run_status, slurm
from shardlab.runs.slurm_request import Request, trial
from shardlab.settings.sites import Site


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
