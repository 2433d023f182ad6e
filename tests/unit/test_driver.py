"""What a call of Snakemake does with the locks of another one."""

import subprocess
import sys

import pytest

from helpers.common import ROOT
from shardlab.launch import driver

ANOTHER_DRIVER = """
import sys
from pathlib import Path
from shardlab.launch import driver
driver.PATIENCE = 0.1
driver.take_over(Path(sys.argv[1]))
"""


def test_locks_of_a_killed_driver_go_and_those_of_a_living_one_stay(tmp_path):
    locks = tmp_path / ".snakemake/locks"

    def take_over():
        locks.mkdir(parents=True, exist_ok=True)
        (locks / "0.input.lock").touch()
        command = [sys.executable, "-c", ANOTHER_DRIVER, str(tmp_path)]
        subprocess.run(command, env={"PYTHONPATH": str(ROOT / "scripts")}, check=True)
        return locks.exists()

    assert not take_over()
    driver.take_over(tmp_path)
    assert take_over(), "this process holds them"
    driver._held.pop().close()
    assert not take_over()
    (tmp_path / ".snakemake/driver.lock").write_text("another machine")
    assert take_over(), "whether that one lives is not known here"


@pytest.mark.parametrize(
    ("words", "works"),
    [(["all"], True), (["-n", "all"], False), (["-np"], False), (["--dag"], False), (["--mode", "subprocess"], False)],
)
def test_a_call_that_only_looks_takes_no_locks(words, works):
    assert driver.works(words) == works
