"""watch.py: what each run does now, on a terminal and without one."""

import asyncio
import fcntl
import json
import sys

import pytest
from textual.widgets import DataTable

from helpers.common import tiny_run
from helpers.reports import STEP, finished
from shardlab.cli import watch
from shardlab.records.reports import Attempt
from shardlab.runs.attempts import Attempts
from shardlab.runs.run_status import next_action, queue, status_of
from shardlab.runs.slurm_reattach import name_of

RUN = tiny_run("mlp", "ddp")
BEGUN = {"kind": "attempt", "step": 0, "steps": 9}


def under_way(results, *whys, steps=3):
    """Write a run whose attempts ended for these reasons (None: still running); return its folder."""
    folder = results / "ddp/mlp"
    records = [BEGUN, *(STEP | {"step": step, "seconds": 2.0} for step in range(steps))]
    made = [
        Attempt(number=number, call="c", began="b", ended=why and "e", host="here", slurm_job_id=None, why=why or "")
        for number, why in enumerate(whys, 1)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "attempts.json").write_text(Attempts(numbers="n", attempts=made).model_dump_json())
    return folder


@pytest.mark.parametrize(
    ("whys", "state", "why"),
    [
        ((None,), "stopped", "died without reporting"),
        (("stopped: SIGTERM",), "stopped", "stopped: SIGTERM"),
        (("error: rank 1 failed",), "failed", "error: rank 1 failed"),
    ],
)
def test_a_run_that_is_not_trained_now(tmp_path, whys, state, why):
    found = status_of(RUN, under_way(tmp_path, *whys), {})
    assert (found.state, found.why, found.step, found.steps, found.seconds_left) == (state, why, 3, 9, None)


def test_a_run_whose_job_waits_and_why(tmp_path, monkeypatch):
    """The queue is asked once for all runs."""
    name = name_of(tmp_path)
    answers = [
        "7|QOSMaxGRESPerUser|rule_train_wildcards_ddp_mlp",
        "8|None|rule_train_wildcards_fsdp_tp_mlp",
        "9|Priority|rule_evaluate_wildcards_single_mlp",
    ]
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\necho \"$*\" >> {tmp_path}/asked\nprintf '%s\\n' '{chr(10).join(answers)}'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(squeue.parent), prepend=":")
    queued = queue(tmp_path)
    assert queued == {"ddp/mlp": "job 7 waits: QOSMaxGRESPerUser", "fsdp_tp/mlp": "job 8"}
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert asked == f"--me --noheader --states=PENDING --name={name} --format=%i|%r|%k"
    found = status_of(RUN, tmp_path / "ddp/mlp", queued)
    assert (found.state, str(watch.cells(found)[-1])) == ("queued", "job 7 waits: QOSMaxGRESPerUser")
    action = next_action(RUN, tmp_path / "ddp/mlp", queued)
    assert action == "job 7 waits: QOSMaxGRESPerUser; the next call follows it"


def test_a_run_that_is_trained_now(tmp_path):
    folder = under_way(tmp_path, None)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = status_of(RUN, folder, {})
        assert (found.state, found.where, found.seconds_left, found.samples_per_second) == ("running", "here", 12, 2.5)
        under_way(tmp_path, "lost: killed", None)
        assert status_of(RUN, folder, {}).state == "resumed"


def test_runs_that_are_done_or_of_other_settings_or_not_begun(tmp_path):
    finished(tmp_path, RUN)
    assert status_of(RUN, tmp_path / "ddp/mlp", {}).state == "done"
    other = status_of(RUN.model_copy(update={"seed": 7}), tmp_path / "ddp/mlp", {})
    assert (other.state, other.why) == ("stale", "a different seed")
    assert status_of(RUN, tmp_path / "single/mlp", {}).state == "waiting"


def test_a_curve_and_a_clock():
    assert watch.curve([8, 7, 6, 5, 4, 3, 2, 1]) == "█▇▆▅▄▃▂▁"
    assert watch.curve([1.0, 1.0]) == "▁▁"
    assert len(watch.curve([float(number) for number in range(1001)])) == watch.WIDTH
    assert [watch.clock(seconds) for seconds in (None, 5, 125, 3723)] == ["", "0:05", "2:05", "1:02:03"]


def test_on_a_terminal_of_80_columns(tmp_path):
    under_way(tmp_path, "error: boom")

    async def walk():
        app = watch.Watch([RUN, tiny_run("mlp")], tmp_path, every=0.05)
        async with app.run_test(size=(80, 24)) as pilot:
            table = app.query_one(DataTable)
            assert [str(cell) for cell in table.get_row_at(0)[:4]] == ["ddp/mlp", "failed", "3/9", "1.0000"]
            under_way(tmp_path, "error: boom", steps=5)
            await pilot.pause(0.3)
            assert str(table.get_row_at(0)[2]) == "5/9"
            assert table.row_count == 2
            await pilot.press("q")
        return app.return_code

    assert asyncio.run(walk()) == 0


def test_without_a_terminal_it_is_printed_once(tmp_path, monkeypatch, capsys):
    under_way(tmp_path, "stopped: SIGTERM")
    config = json.dumps({"strategies": ["ddp"], "workloads": ["mlp"]})
    monkeypatch.setattr(sys, "argv", ["shardlab watch", f"--config={config}", f"--results={tmp_path}"])
    watch.main()
    seen = capsys.readouterr().out
    assert "stopped: SIGTERM" in seen
    assert seen.endswith("1 run: 1 stopped\n")
    assert "\x1b" not in seen
