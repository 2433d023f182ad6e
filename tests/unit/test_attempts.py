"""The attempts at a run: from scratch once for each request, how far each came, when it is given up, what is next."""

import fcntl
import os
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from helpers.common import program, save_initial, tiny_run
from shardlab.data import store
from shardlab.errors import UserError
from shardlab.records import manifest
from shardlab.records.reports import Attempt, TrainReport
from shardlab.report import summary
from shardlab.runs import attempts, job, snakemake_lock
from shardlab.runs.attempts import CALL, AttemptLog
from shardlab.runs.run_status import NOT_BEGUN, next_action, queue
from shardlab.runs.slurm_reattach import name_of
from shardlab.settings import run_identity
from shardlab.train import loop

RUN = tiny_run("mlp", checkpoint_interval_steps=2, ema_decay=0.9)


class Killed(BaseException):
    """The end of `shardlab launch` and its ranks; nothing is noted."""


class Project:
    """A folder with one run, whose jobs train it in this process."""

    def __init__(self, folder, data):
        self.folder, self.data, self.initial = folder, data, folder / "initial"
        self.output, self.done = folder / "results/single/mlp", folder / "results/single/mlp.done"
        self.kill_at, self.steps = None, []

    def ranks(self, command, log):
        log.parent.mkdir(exist_ok=True)
        log.touch()

        def observe(number, _):
            self.steps.append(number)
            if number == self.kill_at:
                raise Killed

        origin = {"attempt": int(command.lines.partition("--attempt=")[2].split()[0])}
        options = loop.TrainOptions(restart="--restart" in command.lines.split(), on_gradients=observe)
        loop.train(RUN, self.data, self.initial, self.output, origin, options)
        return 0

    def call(self, *, force=False):
        """A call of Snakemake begins; it removes the .done of a run that it is forced to train."""
        snakemake_lock.bring_up_to_date(RUN, self.output / "run.json")
        snakemake_lock.note_done(self.folder, [RUN])
        if force:
            self.done.unlink(missing_ok=True)

    def job(self, kill_at=None, *, restart=False):
        """The run's job; returns the steps that it took."""
        self.kill_at, self.steps = kill_at, []
        try:
            self.train(restart=restart)
        except Killed:
            assert not self.done.exists()
            assert not (self.output / "train.json").exists()
        return self.steps

    def train(self, *, restart=False):
        story = AttemptLog(RUN, self.output, store.fingerprint_of(self.data), self.initial)
        assert job.train(RUN, story, ["shardlab", "train"], None, self.done, None, restart=restart) == 0


@contextmanager
def in_this_process(project):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job, "Child", lambda *_: SimpleNamespace(run=project.ranks, stop_signal=""))
        patched.setenv(CALL, "first")
        yield project


@pytest.fixture(scope="module")
def finished(tiny_data, tmp_path_factory):
    """Folder of a project whose run is done."""
    with in_this_process(Project(tmp_path_factory.mktemp("finished"), tiny_data / "mlp")) as made:
        made.output.mkdir(parents=True)
        save_initial(RUN, made.initial)
        made.call()
        assert made.job() == [0, 1, 2, 3]
    return made.folder


@pytest.fixture
def project(finished, tiny_data, tmp_path):
    """A project whose run is done."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    with in_this_process(Project(tmp_path, tiny_data / "mlp")) as made:
        yield made


def test_a_forced_run_is_trained_from_scratch_once_however_often_its_calls_are_killed(project):
    project.done.unlink()
    assert project.job() == [], "its driver had died"
    project.call(force=True)
    # Killed while its job waits in the queue; the next call is not forced.
    project.call()
    assert project.job(kill_at=1) == [0, 1]
    assert manifest.saved(project.output) == []
    project.call()
    assert project.job(kill_at=3) == [0, 1, 2, 3]
    row = summary.collect([RUN], project.folder / "results", 0).iloc[0]
    assert row.status == "missing: resumable from step 2"
    project.call()
    assert project.job() == [2, 3]
    assert project.job() == []
    report = TrainReport.read(project.output / "train.json", "")
    assert [each.from_step for each in report.attempts] == [0, 0, 2], "those of the training before are another's"
    assert report.lost_steps == 1, "the third step was taken again"


def test_files_that_were_changed_are_repaired_from_the_last_checkpoint(project, monkeypatch, capsys):
    weights = [project.output / f"{kind}.safetensors" for kind in ("model", "ema")]
    whole, path = [each.read_bytes() for each in weights], weights[1]
    monkeypatch.setattr(snakemake_lock, "_held", [None])
    project.call()
    assert next_action(RUN, project.output) == "done"
    os.truncate(path, path.stat().st_size - 1)
    assert next_action(RUN, project.output).startswith("resumable from step 4; attempt 1 ")
    assert f" finished ({path} " in next_action(RUN, project.output)
    row = summary.collect([RUN], project.folder / "results", 0).iloc[0]
    assert row.status.startswith(f"damaged: {path}")
    project.call()
    assert not project.done.exists(), "Snakemake has its job run"
    assert f"warning: {path}" in capsys.readouterr().err
    assert project.job() == [], "its last checkpoint is that of its last step"
    assert [each.read_bytes() for each in weights] == whole
    assert next_action(RUN, project.output) == "done"


def test_one_call_begins_from_scratch_once(project, monkeypatch):
    monkeypatch.setenv(CALL, "second")
    assert project.job(kill_at=3, restart=True) == [0, 1, 2, 3]
    assert project.job(restart=True) == [2, 3], "Slurm has put its job back into the queue"
    assert project.job(restart=True) == []
    monkeypatch.setenv(CALL, "third")
    assert project.job(restart=True) == [0, 1, 2, 3]


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
        ([FAILED, FAILED], {}, True),
        ([FAILED, "error: another"], {}, False),
        (["killed", "error: another", FAILED], {}, True),
        ([FAILED, FAILED], {"from_step": 2, "saved": 4}, False),
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


@pytest.mark.parametrize(
    ("status", "text", "sentence"),
    [
        (1, "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7) (SIGKILL)\n", "rank 1 was killed by signal 9"),
        (137, "", "its process was killed by signal 9 (Killed)"),
    ],
)
def test_why_an_attempt_ended(story, status, text, sentence):
    (log := story.log(tried(1))).parent.mkdir(parents=True)
    log.write_text(f"Root Cause (first observed failure):\n[0]:\n  time      : now\n  host      : here\n{text}")
    assert story.sentence(tried(1), status).startswith(sentence)


def test_attempts_of_other_settings_are_others_and_with_those_of_before_the_run_goes_on(story, tmp_path):
    with story.attempt() as attempt:
        attempt.why = "stopped: SIGINT"
    other = AttemptLog(tiny_run("mlp", epochs=9), story.folder, "d", tmp_path / "initial")
    for number in (2, 3):
        with other.attempt() as attempt:
            attempt.why = FAILED
            assert attempt.number == number
    with pytest.raises(UserError, match="is given up"):
        other.stop_if_no_progress()
    again = AttemptLog(story.run, story.folder, "d", tmp_path / "initial")
    again.stop_if_no_progress()
    with again.attempt() as attempt:
        assert (attempt.number, [each.number for each in again.own]) == (4, [1, 4])


@pytest.mark.parametrize("last", ["mlp.done", "attempts.json", "train.json"])
def test_a_kill_while_the_old_training_is_removed_loses_no_request(project, monkeypatch, last):
    project.call(force=True)
    real = snakemake_lock.Path.unlink

    def unlink(path, missing_ok=False):
        real(path, missing_ok=missing_ok)
        if path.name == last:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(snakemake_lock.Path, "unlink", unlink)
        with pytest.raises(Killed):
            project.train()
    project.call()
    assert project.job() == [0, 1, 2, 3]
    assert TrainReport.read(project.output / "train.json", "").lost_steps == 0


def test_what_is_there_of_a_run(tiny_data, tmp_path):
    run = tiny_run("mlp", checkpoint_interval_steps=2)
    folder = tmp_path / "single" / "mlp"

    def said(run=run):
        return next_action(run, folder)

    assert said() == "not begun"
    save_initial(run, tmp_path / "initial")
    loop.train(run, tiny_data / "mlp", tmp_path / "initial", folder, {})
    assert said() == "finished, but not recorded by Snakemake: the next call uses it as it is"
    folder.with_suffix(".done").touch()
    assert said() == "done"
    with (folder / ".lock").open("w") as lock:
        lock.write("process 1 on here")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert said() == "alive: process 1 on here trains it; the next call follows it or waits for it"
    (folder / "train.json").unlink()
    assert said() == "resumable from step 4; never begun"
    other = run.model_copy(update={"seed": 7})
    assert said(other) == "checkpoint with a different seed: change it back, or train with --config restart=true"
    (manifest.place(folder, 4) / "manifest.json").write_text("{}")
    assert said().startswith("resumable from step 2; never begun (")
    assert "step-00000004/manifest.json" in said()
    shutil.rmtree(folder / "checkpoints")
    assert said() == NOT_BEGUN


def test_a_run_whose_job_waits_and_why(tmp_path, monkeypatch):
    """The queue is asked once for all runs."""
    name = name_of(tmp_path)
    answers = [
        "7|QOSMaxGRESPerUser|rule_train_wildcards_ddp_mlp",
        "8|None|rule_train_wildcards_fsdp_tp_mlp",
        "9|Priority|rule_evaluate_wildcards_single_mlp",
    ]
    program(tmp_path / "bin/squeue", f"echo \"$*\" >> {tmp_path}/asked\nprintf '%s\\n' '{chr(10).join(answers)}'")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    queued = queue(tmp_path)
    assert queued == {"ddp/mlp": "job 7 waits: QOSMaxGRESPerUser", "fsdp_tp/mlp": "job 8"}
    assert (tmp_path / "asked").read_text().count(f" --name={name} ") == 1
    action = next_action(tiny_run("mlp", "ddp"), tmp_path / "ddp/mlp", queued)
    assert action == "job 7 waits: QOSMaxGRESPerUser; the next call follows it"
