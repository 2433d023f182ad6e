"""The Snakemake process that a job follows is known by what it is, not by its command line."""

import os
import select
import subprocess
import sys
import threading

import pytest

from helpers.common import ROOT
from shardlab.runs import signals

FOLLOWS = """
import sys
from shardlab.runs import signals
print(signals.driver_ended(), flush=True)
signals.watch_snakemake(lambda: print("ended", flush=True))
sys.stdin.read()
"""
RUNS = f"""
import subprocess, sys, time
from shardlab.runs import signals
signals.announce_driver()
subprocess.Popen([sys.executable, "-c", {FOLLOWS!r}])
time.sleep(60)
"""


def test_a_job_sees_the_end_of_its_snakemake():
    """A zombie, too, that nobody waits for."""
    driver = subprocess.Popen(
        [sys.executable, "-c", RUNS],
        env=os.environ | {"PYTHONPATH": f"{ROOT}/scripts"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout.readline() == "False\n"
    assert not select.select([driver.stdout], [], [], 0.2)[0]
    driver.kill()
    assert driver.stdout.readline() == "ended\n"
    driver.communicate()


@pytest.mark.parametrize(
    ("changed", "ended"),
    [({}, False), ({0: "999999999"}, True), ({1: "1"}, True), ({2: "another"}, None), ({1: "1", 2: "another"}, None)],
    ids=["this process", "ended", "its number was given again", "another machine", "another machine's number"],
)
def test_a_process_is_known_by_its_number_start_and_boot(monkeypatch, changed, ended):
    monkeypatch.setenv(signals.DRIVER, "")
    assert signals.driver_ended() is None, "no Snakemake"
    signals.announce_driver()
    words = dict(enumerate(os.environ[signals.DRIVER].split())) | changed
    monkeypatch.setenv(signals.DRIVER, " ".join(words.values()))
    assert signals.driver_ended() is ended
    told = threading.Event()
    signals.watch_snakemake(told.set)
    assert told.is_set() == (ended is True)
