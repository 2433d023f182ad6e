"""Output of a call on a terminal, event by event; on a real one: tests/workflow/test_terminal.py."""

import io
import logging

import pytest
from rich.console import Console

from shardlab.runs.progress import Lines, failed


def event(kind, message="", level=logging.INFO, **more):
    return logging.makeLogRecord({"event": kind, "msg": message, "levelno": level, **more})


@pytest.mark.parametrize("first", ["job", "snakemake"])
def test_ctrl_c_is_answered_once_whoever_hears_of_it_first(first, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("error: single x mlp stopped on request (SIGINT): steps saved: 7.\n")
    said = io.StringIO()
    shown = Lines(Console(file=said, width=200), logging.StreamHandler(io.StringIO()))
    events = {
        "job": event("job_error", rule_name="train", log=[str(log)], output=["results/single/mlp.done"]),
        "snakemake": event(None, "Terminating processes on user request, this might take some time."),
    }
    for each in sorted(events, key=lambda name: name != first):
        shown.emit(events[each])
    shown.emit(event("error", "Exiting because a job execution failed. Look above for error messages", logging.ERROR))
    shown.close()
    assert [line for line in said.getvalue().splitlines() if line.strip()] == [
        "stopped; run the same command again to resume"
    ]


def test_all_that_preflight_finds_is_shown(tmp_path):
    log = tmp_path / "login.log"
    log.write_text("home: 3 GiB free\nwrong: sbatch was not found\n[0]:wrong: no container\n")
    said = failed(event("job_error", rule_name="preflight_login", log=[str(log)]))
    assert said == f"wrong: sbatch was not found\nwrong: no container\npreflight_login failed; see {log}"


def test_what_slurm_says_of_a_job_that_it_refuses_is_shown():
    refusal = "SLURM sbatch failed. The error message was 'Invalid account'.\n    sbatch call:\n  sbatch -p x"
    said = failed(event("job_error", rule_name="train", rule_msg=refusal))
    assert said == "train failed. SLURM sbatch failed. The error message was 'Invalid account'."
