"""Output of a call on a terminal, event by event; on a real one: tests/workflow/test_terminal.py."""

import io
import logging

import pytest
from rich.console import Console

from shardlab.files import write_json
from shardlab.runs.progress import Lines, failed, finished


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


def test_a_file_gets_a_line_per_tenth_of_the_jobs_and_what_takes_minutes():
    said = io.StringIO()
    shown = Lines(Console(file=said, width=200))
    shown.emit(event("job_info", jobid=1, rule_name="image", rule_msg="Building the image"))
    for done in range(1, 63):
        shown.emit(event("job_info", jobid=done + 1, rule_name="train", rule_msg="Training"))
        shown.emit(event("progress", done=done, total=62))
    shown.close()
    first, *tenths = said.getvalue().splitlines()
    assert first == "Building the image"
    assert [tenths[0], tenths[-1], len(tenths)] == ["7 of 62 jobs done", "62 of 62 jobs done", 10]


def test_all_that_preflight_finds_is_shown(tmp_path):
    log = tmp_path / "login.log"
    log.write_text("home: 3 GiB free\nwrong: sbatch was not found\n[0]:wrong: no container\n")
    said = failed(event("job_error", rule_name="preflight_login", log=[str(log)]))
    assert said == f"wrong: sbatch was not found\nwrong: no container\npreflight_login failed; see {log}"


def test_the_reason_is_shown_and_not_that_there_is_one(tmp_path):
    log = tmp_path / "init.log"
    log.write_text("error: x lacks lm_head.\nerror: init of x ended with status 1; see the error above.\n")
    assert failed(event("job_error", rule_name="init", log=[str(log)])) == f"init: error: x lacks lm_head. ({log})"


def test_what_slurm_says_of_a_job_that_it_refuses_is_shown():
    refusal = "SLURM sbatch failed. The error message was 'Invalid account'.\n    sbatch call:\n  sbatch -p x"
    said = failed(event("job_error", rule_name="train", rule_msg=refusal))
    assert said == "train failed. SLURM sbatch failed. The error message was 'Invalid account'."


def test_a_finished_run_says_how_far_it_is_from_one_device_once_that_is_known(tmp_path):
    write_json(tmp_path / "ddp/mlp/test.json", {"loss": 2.0002})
    write_json(tmp_path / "ddp/mlp/train.json", {"wall_seconds": 1.5})
    run = {"strategy": "ddp", "workload": "mlp"}
    assert finished(run, tmp_path).split() == ["ddp", "x", "mlp", "loss", "2.000200", "1.5", "s"]
    write_json(tmp_path / "single/mlp/test.json", {"loss": 2.0})
    assert finished(run, tmp_path).split() == ["ddp", "x", "mlp", "loss", "2.000200", "(1e-04)", "1.5", "s"]
