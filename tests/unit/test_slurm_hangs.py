"""Slurm's client commands that never end, as sacct's without slurmdbd: each caller goes on after a time limit."""

import time

import pytest

from shardlab.errors import UserError
from shardlab.runs import run_status, slurm, slurm_limits, slurm_reattach
from shardlab.settings.sites import Site

CLIENTS = ("sacct", "sbatch", "scontrol", "sinfo", "squeue", "sshare")


@pytest.fixture
def hanging(monkeypatch, tmp_path):
    """Client commands that sleep much longer than they are waited for."""
    for name in CLIENTS:
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "PATIENCE", 0.1, raising=False)
    monkeypatch.setattr(slurm, "PAUSES", (0,))


def nodes_to_avoid():
    found = slurm_reattach.FailedNodes()
    found.add("n[1-2]")
    return found


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param(lambda _: slurm.requeue(slurm.TIME_LIMIT), False, id="requeue"),
        pytest.param(lambda _: slurm.seconds_left(), None, id="time left"),
        pytest.param(
            lambda _: slurm_limits.policy(Site(slurm={}), 1, 1),
            (["limits: unknown, because scontrol does not answer"], []),
            id="limits",
        ),
        pytest.param(lambda _: nodes_to_avoid(), set(), id="nodes to avoid"),
        pytest.param(run_status.queue, {}, id="waiting jobs"),
    ],
)
def test_a_figure_that_slurm_does_not_give_is_left_out(hanging, capsys, tmp_path, call, expected):
    began = time.monotonic()
    assert call(tmp_path) == expected
    assert time.monotonic() - began < 60
    assert "Slurm does not answer" in capsys.readouterr().err or expected is None


def test_whether_a_job_still_trains_is_not_guessed(hanging):
    with pytest.raises(UserError, match="Slurm does not answer"):
        slurm.in_queue("Slurm job 8")
