"""Locks of earlier calls of Snakemake, and settings that were edited since."""

import json
import os
import signal
import subprocess
import sys

import pytest

from helpers.common import ROOT, tiny_run
from shardlab.errors import UserError, remedy
from shardlab.files import write_json
from shardlab.runs import snakemake_lock
from shardlab.settings.types import read_run, sealed

ANOTHER_DRIVER = """
import sys
from pathlib import Path
from shardlab.runs import snakemake_lock
snakemake_lock.PATIENCE = 0.1
snakemake_lock.take(Path(sys.argv[1]))
"""


def test_locks_of_a_killed_driver_go_and_one_that_lives_is_waited_for(tmp_path):
    locks = tmp_path / ".snakemake/locks"

    def another_call():
        locks.mkdir(parents=True, exist_ok=True)
        (locks / "0.input.lock").touch()
        command = [sys.executable, "-c", ANOTHER_DRIVER, str(tmp_path)]
        return subprocess.Popen(command, env={"PYTHONPATH": str(ROOT / "scripts")}, stderr=-1, text=True)

    assert another_call().communicate() == (None, "")
    assert not locks.exists()
    snakemake_lock.take(tmp_path)
    waiting = another_call()
    said = waiting.stderr.readline()
    assert said.startswith(f"Process {os.getpid()} on {os.uname().nodename} runs the jobs of another call in this fol")
    assert waiting.poll() is None
    ended = another_call()
    assert ended.stderr.readline() == said
    ended.send_signal(signal.SIGINT)
    assert (ended.wait(30), ended.stderr.read()) == (-signal.SIGINT, "")
    assert locks.exists(), "this process holds them"
    snakemake_lock._held.pop().close()
    assert waiting.wait(30) == 0
    assert not locks.exists()
    (tmp_path / ".snakemake/driver.lock").write_text("another_machine 7")
    another_call().wait()
    assert locks.exists(), "whether that one lives is not known here"


def test_a_call_that_only_looks_takes_no_locks():
    assert [snakemake_lock.runs_jobs([word]) for word in ("all", "-np", "--dag")] == [True, False, False]


def test_settings_that_were_edited_are_resolved_again(tmp_path):
    """By the next call, and no program takes them before; those of another configuration are no edit."""
    run, path = tiny_run("mlp"), tmp_path / "results/single/mlp/run.json"
    write_json(path, sealed(run))
    write_json(path, json.loads(path.read_text()) | {"seed": 2})
    os.utime(path, ns=(5, 5))
    with pytest.raises(UserError) as error:
        read_run(path)
    again = remedy("recreate it", path, "--force")
    assert str(error.value) == f"{path} was edited; change the configuration instead, and {again}."
    snakemake_lock.bring_up_to_date(run, path)
    assert read_run(path) == run
    assert path.stat().st_mtime_ns == 5, "nothing becomes outdated"
    other = tiny_run("mlp", max_steps=7)
    write_json(path, sealed(other))
    snakemake_lock.bring_up_to_date(run, path)
    assert read_run(path) == other, "Snakemake resolves it again, if the call needs it"
