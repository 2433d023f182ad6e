"""What this project changes in the executor plugin: it is still the plugin that was changed, and does what is said."""

from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as plugin

from shardlab.errors import UserError
from shardlab.files import lock
from shardlab.patches import snakemake_slurm
from shardlab.runs import slurm, slurm_reattach

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
    assert slurm_reattach.live_job(tmp_path, "shardlab-1", job("fsdp", "tp_llama2")) is None, "of the same comment"


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
    states, jobs = {"1": "RUNNING", "2": "PREEMPTED"}, ({"1", "2", "3"}, {})
    found = [slurm_reattach.resolve_lost_jobs(states, *jobs) for _ in range(slurm_reattach.PATIENCE + 1)]
    assert found == [states] * slurm_reattach.PATIENCE + [{"1": "RUNNING", "2": "FAILED", "3": "UNKNOWN"}]


@pytest.mark.parametrize(("left", "seconds"), [("1-02:03:04", 93784), ("19:58", 1198), ("UNLIMITED", None)])
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
        (slurm.TIME_LIMIT, "Requeue=0 PreemptTime=None", False),
    ],
)
def test_what_was_cancelled_does_not_come_back(monkeypatch, why, shown, expected):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=shown, returncode=0))
    assert slurm.requeue(why) == expected


def test_the_plugin_is_the_one_that_is_changed():
    """What the patched executor does tests/cluster/test_interruptions.py shows."""
    assert snakemake_slurm.incompatibility(plugin) is None
