"""The attempts at a run: what a start finds, and why each one ended."""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Literal

from pydantic import Field

from shardlab.errors import IN_LOG, UserError
from shardlab.files import read_json, sha256, write_json
from shardlab.records import done as done_file
from shardlab.records import manifest, metrics
from shardlab.records.reports import Attempt, TrainReport
from shardlab.runs import script_place, slurm
from shardlab.schema import Strict, check
from shardlab.settings import run_identity
from shardlab.settings.run_identity import Identity
from shardlab.settings.types import Run

FILE, LOGS, SEEN = "attempts.json", "attempts", ".seen"
TRIES = 3
"""Consecutive attempts of one call without progress after which it gives up."""
KILLED = re.compile(r"Root Cause \(first observed failure\):.*?^  rank +: (\d+).*?^  exitcode +: -(\d+) ", re.M | re.S)
"""The rank that torchrun saw die first, if by a signal."""
KILLED_IN_SHELL = 128
"""Offset that a shell adds to the number of the signal that killed a program, to form its status."""
CALL = "SHARDLAB_CALL"
"""Environment variable with the same value for all jobs of one call of Snakemake: a new call may try again."""


class Attempts(Strict):
    """All attempts at the run in a folder: attempts.json."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    numbers: str = Field(description="That of the last one.")
    attempts: list[Attempt] = Field(description="All attempts, oldest first.")


def read_story(folder: Path) -> Attempts | None:
    """Return the attempts at the run in a folder; None if `shardlab launch` has not started it.

    Raises:
        UserError: their file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    return check(Attempts, read_json(path, "attempts at the run", "remove it"), str(path))


def history(folder: Path, numbers: str | None = None) -> list[Attempt]:
    """Return all attempts at the run in a folder, or those with the settings of this digest."""
    story = read_story(folder)
    return [each for each in (story.attempts if story else []) if numbers in (None, each.numbers)]


class AttemptLog:
    """Log of the attempts at one run, for the process that holds its lock."""

    def __init__(self, run: Run, folder: Path, fingerprint: str, initial: Path) -> None:
        """``fingerprint`` is that of the prepared data, ``initial`` the file of the initial weights."""
        self.run, self.folder, self.initial = run, folder, initial
        self.identity = run_identity.identity_of(run, fingerprint)
        self.attempts = history(folder)
        """All of them: one that other settings were refused for must not end, or begin, as one of these did."""
        if self.attempts and self.attempts[-1].ended is None:
            self._end(self.attempts[-1], "lost: it died without reporting (killed, or node failure)")

    @property
    def own(self) -> list[Attempt]:
        """Those with this run's settings."""
        return [attempt for attempt in self.attempts if attempt.numbers == self.identity.numbers]

    def finished(self) -> Identity | None:
        """Return the identity of the finished training whose files are all complete; None without one."""
        try:
            report = TrainReport.read(self.folder / "train.json", "train again")
            whole = report.weights == sha256(self.folder / "model.safetensors")
            average = self.folder / done_file.AVERAGED
            whole = whole and (report.ema_weights is None or report.ema_weights == sha256(average))
        except (UserError, OSError):
            return None
        return report.identity if whole and report.initial_weights == sha256(self.initial) else None

    def begins_afresh(self, finished: Identity | None) -> bool:
        """Return whether the existing checkpoints belong to a training that has ended."""
        folders = manifest.saved(self.folder)
        if finished is None or not folders:
            return finished is not None
        try:
            return manifest.read(folders[0]).identity.numbers == finished.numbers
        except UserError:
            return False

    def tried_by_this_call(self) -> bool:
        """Return whether an earlier attempt belongs to this call of Snakemake: its job was restarted."""
        call = os.environ.get(CALL)
        return call is not None and any(attempt.call == call for attempt in self.own)

    def note_done(self, done: Path | None) -> int:
        """Write the file that Snakemake waits for, if requested; return the status 0."""
        if done:
            done_file.note(done, self.folder)
        return 0

    def forget_done(self, done: Path | None, *, checkpoints: bool) -> None:
        """Remove the files that mark the run as done, so that an interrupted training is not mistaken for the previous
        one.

        ``checkpoints``: also remove those of the previous training, so that the next one does not resume from them, its
        attempts and its metrics. After a kill in between, train.json and the request to train again are still there.
        """
        if done:
            done.unlink(missing_ok=True)
        if checkpoints:
            for folder in manifest.saved(self.folder):
                manifest.remove(folder)
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
            shutil.rmtree(self.folder / script_place.OUTPUT, ignore_errors=True)
            self.attempts = []
            for name in (FILE, metrics.NAME):
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(self.folder / LOGS, ignore_errors=True)
        (self.folder / "train.json").unlink(missing_ok=True)
        (self.folder / done_file.AVERAGED).unlink(missing_ok=True)  # the next training may have none
        (self.folder / SEEN).unlink(missing_ok=True)

    def stop_if_no_progress(self) -> None:
        """Give up if further attempts of the same call would make no progress.

        Raises:
            UserError: three attempts in a row made no progress, or two in a row ended with the same error.
        """
        local = [attempt for attempt in self.own if attempt.call == os.environ.get(CALL)]
        vain = [*takewhile(lambda attempt: attempt.failed and not attempt.progress, reversed(local))]
        again = len(local) > 1 and local[-1].why == local[-2].why and local[-1].why.startswith("error: ")
        if vain and (again or len(vain) >= TRIES):
            raise UserError(
                f"{self.run.strategy} x {self.run.workload} is given up: further attempts of this call would not "
                f"get beyond step {vain[0].reached or 0}, where the last one ended with: "
                f"{vain[0].why.removeprefix('error: ')} Fix that, then run the same command again."
            )

    def check_script_checkpoints(self) -> None:
        """Check that a script which goes on does so from checkpoints of this run.

        Raises:
            UserError: they are those of other settings, or of the script before an edit.
        """
        if script_place.has_checkpoints(self.folder) and not self.own:
            place = self.folder / script_place.OUTPUT / script_place.CHECKPOINTS
            raise UserError(
                f"{place} was written by {self.run.script} before it or its settings were changed; undo the change, "
                "remove that folder, or train from the first step with --config restart=true."
            )

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Record an attempt's start, and afterwards how it ended: the caller sets ``why``."""
        attempt = Attempt(
            number=self.attempts[-1].number + 1 if self.attempts else 1,
            numbers=self.identity.numbers,
            call=os.environ.get(CALL),
            began=metrics.now(),
            host=os.uname().nodename,
            slurm_job_id=slurm.job_id(),
        )
        self.attempts.append(attempt)
        self._write()
        yield attempt
        self._end(attempt, attempt.why)

    def log(self, attempt: Attempt) -> Path:
        return self.folder / LOGS / f"{attempt.number:03d}.log"

    def stopped(self, attempt: Attempt) -> str | None:
        """Return why an attempt saved and stopped, if it did."""
        records = metrics.read(self.folder / metrics.NAME)
        started = [record.get("number") for record in records if record["kind"] == "attempt"]
        # An attempt that failed before its first step left the records of the one before it.
        if not started or started[-1] != attempt.number or records[-1]["kind"] != "stopped":
            return None
        return str(records[-1]["why"])

    def error(self, attempt: Attempt) -> str | None:
        """Return the sentence with which one of an attempt's ranks ended, if one did."""
        log = self.log(attempt)
        match = IN_LOG.search(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else None
        return match[1] if match else None

    def sentence(self, attempt: Attempt, status: int) -> str:
        """Return the one-line reason why an attempt failed, from the output of its ranks."""
        if error := self.error(attempt):
            return error
        text = self.log(attempt).read_text(encoding="utf-8", errors="replace")
        if killed := KILLED.search(text):
            who, number = f"rank {killed[1]}", int(killed[2])
        elif status < 0 or status > KILLED_IN_SHELL:
            who, number = "its process", -status if status < 0 else status - KILLED_IN_SHELL
        else:
            return f"it ended with status {status}; see {self.log(attempt)}"
        return f"{who} was killed by signal {number} ({signal.strsignal(number)}); see {self.log(attempt)}"

    def _end(self, attempt: Attempt, why: str) -> None:
        records = metrics.read(self.folder / metrics.NAME)
        started = [record for record in records if record["kind"] == "attempt"]
        steps = [record["step"] for record in records if record["kind"] == "train"]
        saved = manifest.saved(self.folder)
        if len(started) and started[-1].get("number") == attempt.number:
            attempt.from_step, attempt.first_step_at = started[-1]["step"], started[-1].get("time")
            attempt.reached = max([step + 1 for step in steps], default=attempt.from_step)
        attempt.saved = manifest.step_of(saved[0]) if saved else None
        attempt.ended, attempt.why = metrics.now(), why
        self._write()

    def _write(self) -> None:
        story = Attempts(numbers=self.identity.numbers, attempts=self.attempts)
        write_json(self.folder / FILE, story.model_dump())


def requested(folder: Path, identity: Identity) -> bool:
    """Return whether a call saw that the run of these settings was done, and no training has begun since then: if its
    job starts nevertheless, retraining was requested.
    """
    try:
        return (folder / SEEN).read_text(encoding="utf-8") == identity.numbers
    except FileNotFoundError:
        return False
