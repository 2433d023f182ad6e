"""What this project changes in the executor plugin."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as plugin

from shardlab.errors import UserError
from shardlab.files import lock
from shardlab.patches import snakemake_slurm
from shardlab.runs import slurm, slurm_reattach

METHODS = ("__post_init__", "run_job", "check_active_jobs")
SCRIPT = """#!/bin/sh
python -m snakemake --snakefile Snakefile --target-jobs 'train:strategy=fsdp_tp,workload=llama2' --nolock
"""


def job(strategy, workload):
    return SimpleNamespace(
        rule=SimpleNamespace(name="train"),
        wildcards_dict={"strategy": strategy, "workload": workload},
        is_group=lambda: False,
    )


@pytest.fixture
def silent(monkeypatch):
    """Commands of Slurm whose controller answers again after some calls: how many; what they say before that."""
    text = "slurm_load_jobs error: Unable to contact slurm controller"
    state = SimpleNamespace(calls=0, fail=99, text=text, of_job="RUNNING")

    def run(words, **_):
        state.calls += 1
        if state.calls <= state.fail:
            return SimpleNamespace(stdout="", stderr=state.text, returncode=1)
        said = {"squeue": f"7|{state.of_job}|rule_train_wildcards_fsdp_tp_llama2\n", "scontrol": SCRIPT}
        alone = f"{state.of_job}\n" if "--states=all" in words else None
        return SimpleNamespace(stdout=alone or said[words[0]], returncode=0)

    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setattr(slurm.subprocess, "run", run)
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: None)
    return state


def test_a_job_of_an_earlier_call_is_known_by_its_script_not_by_its_comment(silent, tmp_path):
    silent.fail = 0
    assert slurm_reattach.live_job(tmp_path, "shardlab-1", job("fsdp_tp", "llama2")) == "7"
    assert slurm_reattach.live_job(tmp_path, "shardlab-1", job("fsdp", "tp_llama2")) is None


@pytest.mark.parametrize(
    ("state", "lives"),
    [
        *((state, True) for state in ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING")),
        ("PREEMPTED", False),
    ],
)
def test_a_queue_that_does_not_answer_for_a_moment_is_asked_again(silent, tmp_path, state, lives):
    """A second job must not train into the folder of one that has not ended."""
    silent.fail, silent.of_job = 2, state
    assert slurm.in_queue("Slurm job 7") == lives
    silent.calls = 0
    assert slurm_reattach.live_job(tmp_path, "shardlab-1", job("fsdp_tp", "llama2")) == ("7" if lives else None)


def test_a_queue_that_does_not_answer_is_not_an_empty_one(silent, tmp_path):
    sentence = "Slurm does not answer .*Unable to contact.*run the same command again once it answers"
    with pytest.raises(UserError, match=sentence):
        slurm_reattach.live_job(tmp_path, "shardlab-1", job("fsdp_tp", "llama2"))
    (tmp_path / ".lock").write_text("Slurm job 7")
    with pytest.raises(UserError, match=sentence), lock(tmp_path / ".lock", "trained", still=slurm.in_queue):
        pytest.fail("a second training begins")
    assert (tmp_path / ".lock").read_text() == "Slurm job 7", "the next call has to ask, too"
    silent.text = "slurm_load_jobs error: Invalid job id specified"
    assert not slurm.in_queue("Slurm job 7"), "Slurm has forgotten it"


def test_jobs_that_slurm_forgot_or_preempted_for_good_end():
    absent, followed = {}, {"1", "2", "3"}
    states = {"1": "RUNNING", "2": "PREEMPTED"}
    for _ in range(slurm_reattach.PATIENCE):
        assert slurm_reattach.resolve_lost_jobs(states, followed, absent) == states
    assert slurm_reattach.resolve_lost_jobs(states, followed, absent) == {"1": "RUNNING", "2": "FAILED", "3": "UNKNOWN"}
    slurm_reattach.resolve_lost_jobs({"1": "RUNNING", "2": "PENDING", "3": "RUNNING"}, followed, absent)
    assert absent == {}, "a job that came back starts anew"


@pytest.mark.parametrize(
    ("left", "seconds"),
    [("1-02:03:04", 93784), ("19:58", 1198), ("UNLIMITED", None)],
)
def test_time_that_is_left(monkeypatch, left, seconds):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setattr(slurm.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=f"{left}\n", returncode=0))
    assert slurm.seconds_left() == seconds


@pytest.mark.parametrize(
    ("why", "shown", "expected"),
    [
        (slurm.TIME_LIMIT, "Requeue=1 PreemptTime=None", True),
        ("SIGTERM", "Requeue=1 PreemptTime=None", False),
        ("SIGTERM", "Requeue=1 StartTime=2026-01-01T00:00:00 PreemptTime=2026-01-01T00:10:00", True),
        ("SIGTERM", "Requeue=1 StartTime=2026-01-01T00:20:00 PreemptTime=2026-01-01T00:10:00", False),
        (slurm.TIME_LIMIT, "Requeue=0 PreemptTime=None", False),
    ],
)
def test_what_was_cancelled_does_not_come_back(monkeypatch, why, shown, expected):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=shown, returncode=0))
    assert slurm.requeue(why) == expected


def test_the_patched_executor_follows_a_job_and_submits_nothing_while_slurm_is_silent(monkeypatch, tmp_path, silent):
    """On a copy of the plugin's classes, since a patch stays for as long as the process does."""
    silent.fail = 0
    copy = SimpleNamespace(
        Executor=type("Executor", (), {name: getattr(plugin.Executor, name) for name in METHODS}),
        SubmittedJobInfo=plugin.SubmittedJobInfo,
        get_job_wildcards=lambda job: "fsdp_tp_llama2",
        query_job_status=None,
    )
    copy.Executor.__post_init__ = lambda self, test_mode=False: None
    monkeypatch.setitem(sys.modules, snakemake_slurm.PLUGIN, copy)
    slurm_reattach.install(tmp_path)
    executor = copy.Executor()
    executor.__post_init__()
    assert executor.run_uuid == slurm_reattach.name_of(tmp_path)
    reported = []
    executor.logger, executor.slurm_logdir = SimpleNamespace(info=reported.append), tmp_path
    executor._report_job_submission_threadsafe = reported.append
    executor._report_job_error_threadsafe = lambda info, msg: reported.append(msg)
    requested = job("fsdp_tp", "llama2")
    requested.jobid = 3
    executor.run_job(requested)
    assert reported[0] == "Job 3 is Slurm job 7 of an earlier call; following it."
    assert (reported[1].external_jobid, reported[1].aux["slurm_logfile"].name) == ("7", "7.log")
    silent.calls, silent.fail = 0, 99
    executor.run_job(requested)
    assert "Slurm does not answer" in reported[2], "and nothing was submitted"


def test_a_query_of_the_plugin_that_does_not_end_has_failed():
    with pytest.raises(subprocess.CalledProcessError):
        snakemake_slurm.limited(0.1)("exec sleep 9", shell=True, text=True, stderr=subprocess.PIPE)
    assert snakemake_slurm.limited(9)("echo n1", shell=True, text=True) == "n1\n"
