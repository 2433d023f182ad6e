"""Faults on one machine: kills, hangs, errors on one rank. A run resumes where it was, or explains why not."""

import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from helpers.common import ROOT, until
from helpers.kills import STEPS, Trial, end_well, soak, weights
from helpers.sockets import LOOPBACK, listening
from shardlab.records import metrics
from shardlab.runs import signals
from shardlab.runs.attempts import history
from shardlab.runs.run_status import alive

pytestmark = pytest.mark.timeout(600)


LINE = "            audit.add(step)\n"
MISTAKE = """            import os

            if os.environ.get("MISTAKE") and number == 17 and world.rank:
                raise ValueError("boom")
"""


@pytest.fixture
def code(tmp_path):
    """The programs of a copy with a mistake in it, which an environment variable switches on."""
    folder = tmp_path / "code/scripts"
    shutil.copytree(ROOT / "scripts", folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "shardlab/train/loop.py"
    assert path.read_text().count(LINE) == 1
    path.write_text(path.read_text().replace(LINE, LINE + MISTAKE))
    return folder


def log(trial):
    return (trial.folder / "launch.log").read_text()


def test_nothing_listens_beyond_loopback(tmp_path):
    trial = Trial(tmp_path, "fsdp", checkpoint_interval_steps=None, checkpoint_interval_minutes=None)
    child, listened = trial.start(), set()
    try:
        while child.poll() is None:
            listened |= listening(trial.processes().values())
            time.sleep(0.02)
    finally:
        trial.end()
    assert child.returncode == 0, log(trial)
    assert listened == {LOOPBACK}
    assert not [*trial.temporary.iterdir()], "the folder where ranks meet"


@pytest.mark.long
def test_processes_killed_at_random(tmp_path):
    assert len(soak(tmp_path, 6, seed=5)) >= 6


def test_a_rank_that_stands_still_is_named(tmp_path, request):
    """The short form kills it once it was named; torchrun would wait 30 s."""
    trial, long = Trial(tmp_path, "fsdp", hang_seconds=4, stop_seconds=2), request.config.getoption("--long")
    child = trial.start()
    try:
        wait_for_step(trial, 10)
        still = trial.processes()["rank 1"]
        os.kill(still, signal.SIGSTOP)
        started = time.monotonic()
        if not long:
            until(lambda: "rank 1 has not responded" in (trial.folder / "attempts/001.log").read_text())
            os.kill(still, signal.SIGKILL)
        assert child.wait(60) == 1
        assert time.monotonic() - started < 55, "4 s, and 30 that torchrun gives the one that stands still"
        assert trial.ended_within(2)
    finally:
        trial.end()
    assert "rank 1 has not responded since step " in log(trial)
    assert re.search(r"rank 0 timed out in step \d+ \(gloo:\w+ \d+ of group \w+(: [\w, ]+ \w+)?\)", log(trial))
    assert "Traceback" not in log(trial), "that is in the attempt's own log"
    if long:
        end_well(trial, request.getfixturevalue("undisturbed"))


def test_mistakes_on_one_rank_are_one_sentence_and_given_up(tmp_path, code, request):
    """An exception on one of two ranks: the same call gives up; in the long form the next one retries and resumes."""
    trial = Trial(tmp_path, "fsdp", scripts=code)
    for attempt in (1, 2, 3):
        assert trial.start(MISTAKE="yes").wait() == 1
        seen = log(trial)
        if attempt < 3:
            assert seen.count("error: rank 1 failed: ValueError: boom") == attempt, seen
        assert "Traceback" not in seen
    assert "fsdp x llama2 is given up: further attempts of this call would not get beyond step 1" in seen
    assert [(each.from_step, each.saved) for each in history(trial.folder)] == [(0, 15), (15, 15)]
    if request.config.getoption("--long"):
        trial.call = "another"
        end_well(trial, request.getfixturevalue("undisturbed"))


def test_a_training_ends_with_its_snakemake(tree):
    """Whose process is not the one that was called."""
    config = {"workloads": ["mlp"], "strategies": ["single"], "noise_floor_runs": 0}
    recipe = {"epochs": 100_000, "max_steps": 100_000, "checkpoint_interval_steps": 50}
    (tree.path / "config/config.yaml").write_text(json.dumps(config | {"recipe": recipe}))
    folder = tree.path / "results/single/mlp"
    caller = tree.start("make", "--old-file=.venv/run", f"BIN={Path(sys.executable).parent}", "run")
    try:
        until(lambda: len(taken(folder)) > 100)
        (server,) = (tree.path / ".snakemake").glob("forkserver-*")
        driver = int(server.name.rpartition("-")[2])
        os.kill(driver, signal.SIGKILL)
        caller.wait(30)
        until(lambda: alive(folder) is None, 10)
    finally:
        caller.kill()
    assert [attempt.why for attempt in history(folder)] == [f"stopped: {signals.DRIVER_ENDED}"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Weights at the end of a run under fsdp that nothing disturbs."""
    whole = Trial(tmp_path_factory.mktemp("whole"), "fsdp")
    assert whole.start().wait() == 0
    return weights(whole)


def wait_for_step(trial, number):
    until(lambda: number <= trial.last() < STEPS - 10)


def taken(folder):
    """The training steps of a run so far."""
    return [record for record in metrics.read(folder / metrics.NAME) if record["kind"] == "train"]
