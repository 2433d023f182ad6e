"""The Snakemake process that a job follows is known by what it is, not by its command line."""

import os
import subprocess
import threading

import pytest

from shardlab.runs import signals


def test_a_job_sees_the_end_of_its_snakemake(monkeypatch):
    """A zombie, too, that nobody waits for."""
    driver = subprocess.Popen(["sleep", "60"])
    monkeypatch.setenv(signals.DRIVER, f"{driver.pid} {signals._started(driver.pid)} {signals._boot()}")
    told = threading.Event()
    signals.watch_snakemake(told.set)
    assert signals.driver_ended() is False
    assert not told.wait(0.2)
    driver.kill()
    assert told.wait(20)
    assert signals.driver_ended()
    driver.wait()


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
