"""The attempts at a run: when it is given up, how far each came, what room a run needs."""

import json
from collections import namedtuple

import pytest

from helpers.common import tiny_run
from shardlab.errors import UserError
from shardlab.records.reports import Attempt
from shardlab.runs import attempts
from shardlab.runs.attempts import AttemptLog
from shardlab.settings import run_identity

FAILED = "error: rank 1 failed"


def tried(number, why=FAILED, call="this", **values):
    ours = run_identity.identity_of(tiny_run("mlp"), "d").numbers
    fixed = {"numbers": ours, "began": "b", "ended": "e", "host": "h", "slurm_job_id": None}
    return Attempt(number=number, call=call, why=why, **fixed, **values)


@pytest.fixture
def story(tmp_path, monkeypatch):
    monkeypatch.setenv(attempts.CALL, "this")
    (tmp_path / "initial").write_bytes(bytes(1000))
    return AttemptLog(tiny_run("mlp"), tmp_path / "run", "d", tmp_path / "initial")


@pytest.mark.parametrize(
    ("whys", "last", "given_up"),
    [
        ([FAILED], {}, False),
        ([FAILED, FAILED], {}, True),
        ([FAILED, "error: another"], {}, False),
        (["killed", "error: another", FAILED], {}, True),
        (["killed", "killed"], {}, False),
        ([FAILED, "stopped: SIGTERM"], {}, False),
        ([FAILED, FAILED], {"from_step": 2, "saved": 4}, False),
        ([FAILED, FAILED], {"from_step": 2, "saved": 2}, True),
        ([FAILED, FAILED], {"call": "another"}, False),
    ],
)
def test_a_run_is_given_up_where_attempts_of_a_call_lead_nowhere(story, whys, last, given_up):
    """Two that end with the same sentence, or three, of which none wrote a checkpoint."""
    story.attempts = [tried(number, why, **(last if number == len(whys) else {})) for number, why in enumerate(whys, 1)]
    if given_up:
        with pytest.raises(UserError, match="is given up: further attempts of this call"):
            story.stop_if_no_progress()
    else:
        story.stop_if_no_progress()


def test_an_attempt_notes_how_far_it_came_and_one_of_other_settings_has_nothing_of_it(story, tmp_path):
    """Not its number, its times or how it ended; with the settings of before, the run goes on."""
    (story.folder / "checkpoints/step-00000003").mkdir(parents=True)
    (story.folder / "checkpoints/step-00000003/manifest.json").touch()
    records = [
        {"kind": "attempt", "number": 1, "step": 2, "time": "t"},
        *({"kind": "train", "step": n} for n in (2, 3)),
        {"kind": "stopped", "step": 3, "why": "SIGINT"},
    ]
    (story.folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with story.attempt() as attempt:
        attempt.why = f"stopped: {story.stopped(attempt)}"
    (found,) = attempts.history(story.folder)
    assert (found.from_step, found.reached, found.saved, found.first_step_at) == (2, 4, 3, "t")
    assert found.ended
    other = AttemptLog(tiny_run("mlp", epochs=9), story.folder, "d", tmp_path / "initial")
    for number in (2, 3):
        with other.attempt() as attempt:
            attempt.why = FAILED
            assert (attempt.number, other.stopped(attempt)) == (number, None)
        assert (attempt.from_step, attempt.first_step_at, attempt.progress) == (None, None, False)
    with pytest.raises(UserError, match="is given up"):
        other.stop_if_no_progress()
    again = AttemptLog(story.run, story.folder, "d", tmp_path / "initial")
    again.stop_if_no_progress()
    with again.attempt() as attempt:
        assert (attempt.number, [each.number for each in again.own]) == (4, [1, 4])
    of_run = attempts.history(story.folder, story.identity.numbers)
    assert of_run[0].why == "stopped: SIGINT"
    assert len(attempts.history(story.folder)) == 4


def test_the_room_that_a_run_needs(story, monkeypatch):
    """Weights of 1000 bytes and two moments: 3000 per checkpoint, of which three exist at once; then the weights."""
    recipe = {"checkpoint_interval_steps": 2, "keep_last_checkpoints": 2, "optimizer": {"name": "adamw"}}
    story.folder.mkdir()
    both = {"keep_best": True, "ema_decay": 0.9}
    for needed, more in ((3 * 3000 + 1000, {}), (3 * 4000 + 2000, {"keep_best": True}), (3 * 5000 + 3000, both)):
        story.run = tiny_run("mlp", **more, **recipe)
        for free in (needed, needed - 1):
            disk = namedtuple("Disk", "free")(free)
            monkeypatch.setattr(attempts.shutil, "disk_usage", lambda _, disk=disk: disk)
            if free == needed:
                story.check_room()
            else:
                with pytest.raises(UserError, match="free space, then run the same command again"):
                    story.check_room()


@pytest.mark.parametrize(
    ("status", "text", "sentence"),
    [
        (1, "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7) (SIGKILL)\n", "rank 1 was killed by signal 9"),
        (-9, "", "its process was killed by signal 9 (Killed)"),
        (137, "", "its process was killed by signal 9 (Killed)"),
        (1, "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 7)\n", "it ended with status 1"),
        (1, "error: no room.\n", "error: no room."),
    ],
)
def test_why_an_attempt_ended(story, status, text, sentence):
    (log := story.log(tried(1))).parent.mkdir(parents=True)
    log.write_text(f"Root Cause (first observed failure):\n[0]:\n  time      : now\n  host      : here\n{text}")
    assert story.sentence(tried(1), status).startswith(sentence)
