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
from shardlab.files import no_room, read_json, sha256, write_json
from shardlab.launch import slurm
from shardlab.report import done as done_file
from shardlab.report import manifest, metrics
from shardlab.report.records import Attempt, TrainReport
from shardlab.schema import Strict, check
from shardlab.settings import identity
from shardlab.settings.identity import Identity
from shardlab.settings.recipe import OPTIMIZERS
from shardlab.settings.types import Run

FILE, LOGS, SEEN = "attempts.json", "attempts", ".seen"
TRIES = 3
"""Attempts of one call in a row that come no further: then it gives up."""
KILLED = re.compile(r"Root Cause \(first observed failure\):.*?^  rank +: (\d+).*?^  exitcode +: -(\d+) ", re.M | re.S)
"""The rank that torchrun saw die first, if by a signal."""
KILLED_IN_SHELL = 128
"""What a shell adds to the signal that killed a program, for its status."""
CALL = "SHARDLAB_CALL"
"""Environment variable that is the same for all jobs of one call of Snakemake: a new call may try again."""


class Attempts(Strict):
    """attempts.json: all attempts at the run that its folder holds."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    numbers: str = Field(description="Of which run: SHA-256 of the settings and sources that decide its numbers.")
    attempts: list[Attempt] = Field(description="The first one first.")


def read_story(folder: Path) -> Attempts | None:
    """The attempts at the run in a folder; None where launch.py has not started it.

    Raises:
        UserError: their file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    return check(Attempts, read_json(path, "attempts at the run", "remove it"), str(path))


def history(folder: Path) -> list[Attempt]:
    """The attempts at the run in a folder."""
    story = read_story(folder)
    return story.attempts if story else []


class Story:
    """The attempts at one run, for the process that holds its lock."""

    def __init__(self, run: Run, folder: Path, fingerprint: str, initial: Path) -> None:
        """``fingerprint`` is that of the prepared data, ``initial`` the file of the initial weights."""
        self.run, self.folder, self.initial = run, folder, initial
        self.identity = identity.of(run, fingerprint)
        before = read_story(folder)
        self.attempts = before.attempts if before and before.numbers == self.identity.numbers else []
        if self.attempts and self.attempts[-1].ended is None:
            self._end(self.attempts[-1], "lost: it ended without a word (killed, or its node failed)")

    def finished(self) -> Identity | None:
        """Identity of the finished training whose files are all here, whole; None if none is."""
        try:
            report = TrainReport.read(self.folder / "train.json", "train again")
            whole = report.weights == sha256(self.folder / "model.safetensors")
        except (UserError, OSError):
            return None
        return report.identity if whole and report.initial_weights == sha256(self.initial) else None

    def begins_afresh(self, finished: Identity | None) -> bool:
        """Whether the checkpoints that are there are those of a training that has ended."""
        folders = manifest.saved(self.folder)
        if finished is None or not folders:
            return finished is not None
        try:
            return manifest.read(folders[0]).identity.numbers == finished.numbers
        except UserError:
            return False

    def was_seen(self) -> bool:
        """Whether a call knew that this run was done: if its job starts nevertheless, training it again was requested.

        The note is of this run's settings; it stays until that training begins.
        """
        return requested(self.folder, self.identity)

    def tried_by_this_call(self) -> bool:
        """Whether an earlier attempt belongs to this call of Snakemake: its job was started again."""
        call = os.environ.get(CALL)
        return call is not None and any(attempt.call == call for attempt in self.attempts)

    def note_done(self, done: Path | None) -> int:
        """Write the file that Snakemake waits for, if it asked for one; returns the status 0."""
        if done:
            done_file.note(done, self.folder)
        return 0

    def forget_done(self, done: Path | None, *, checkpoints: bool) -> None:
        """Remove what says that the run is done, so that an interrupted training is not mistaken for the previous one.

        ``checkpoints``: also remove those of the previous training, so that the next one does not resume from them, and
        its attempts. After a kill in between, train.json and the request to train again are still there.
        """
        if done:
            done.unlink(missing_ok=True)
        if checkpoints:
            for folder in manifest.saved(self.folder):
                manifest.remove(folder)
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
            self.attempts = []
            (self.folder / FILE).unlink(missing_ok=True)
            shutil.rmtree(self.folder / LOGS, ignore_errors=True)
        (self.folder / "train.json").unlink(missing_ok=True)
        (self.folder / SEEN).unlink(missing_ok=True)

    def refuse_hopeless(self) -> None:
        """Give up where further attempts of the same call lead nowhere.

        Raises:
            UserError: three in a row came no further, or two in a row ended with the same sentence.
        """
        mine = [attempt for attempt in self.attempts if attempt.call == os.environ.get(CALL)]
        vain = [*takewhile(lambda attempt: attempt.failed and not attempt.progress, reversed(mine))]
        again = len(mine) > 1 and mine[-1].why == mine[-2].why and mine[-1].why.startswith("error: ")
        if vain and (again or len(vain) >= TRIES):
            raise UserError(
                f"{self.run.strategy} x {self.run.workload} is given up: further attempts of this call would "
                f"come no further than step {vain[0].reached or 0}, where the last one ended with: "
                f"{vain[0].why.removeprefix('error: ')} Mend that; the same call then tries again."
            )

    def check_room(self) -> None:
        """Make sure that weights and checkpoints will have room, in free space and in the quota.

        Raises:
            UserError: they will not.
        """
        recipe, size = self.run.recipe, initial_size(self.initial)
        states = OPTIMIZERS[recipe.optimizer.name].states(recipe.optimizer)
        one = size * (1 + states + recipe.keep_best) if recipe.keeps_checkpoints else 0
        needed = (recipe.checkpoints_kept + 1) * one + size * (1 + recipe.keep_best)
        there = sum(path.stat().st_size for path in self.folder.glob("checkpoints/**/*") if path.is_file())
        if reason := no_room(self.folder, needed - there):
            raise UserError(
                f"{self.folder} has no room ({reason}): the weights and {recipe.checkpoints_kept} checkpoints of this "
                f"run, one more while it is written, will need {(needed - there) / 2**20:.0f} MiB; make room, then run "
                "the same command again."
            )

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Note that an attempt begins, and afterwards how it ended: ``why`` is the caller's to set."""
        attempt = Attempt(
            number=len(self.attempts) + 1,
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
        """File with all that an attempt prints."""
        return self.folder / LOGS / f"{attempt.number:03d}.log"

    def stopped(self) -> str | None:
        """Why the last attempt saved and ended, if that is how it did."""
        told = reversed(metrics.read(self.folder / metrics.NAME))
        last = next((record for record in told if record["kind"] != "usage"), None)
        return last["why"] if last and last["kind"] == "stopped" else None

    def sentence(self, attempt: Attempt, status: int) -> str:
        """The one line that says why an attempt failed, out of all that its ranks printed."""
        text = self.log(attempt).read_text(encoding="utf-8", errors="replace")
        if found := IN_LOG.search(text):
            return found[1]
        if killed := KILLED.search(text):
            who, number = f"rank {killed[1]}", int(killed[2])
        elif status < 0 or status > KILLED_IN_SHELL:
            who, number = "its process", -status if status < 0 else status - KILLED_IN_SHELL
        else:
            return f"it ended with status {status}; see {self.log(attempt)}"
        return f"{who} was killed by signal {number} ({signal.strsignal(number)}); see {self.log(attempt)}"

    def _end(self, attempt: Attempt, why: str) -> None:
        told = metrics.read(self.folder / metrics.NAME)
        begun = [record for record in told if record["kind"] == "attempt"]
        steps = [record["step"] for record in told if record["kind"] == "train"]
        saved = manifest.saved(self.folder)
        if len(begun) and begun[-1].get("number") == attempt.number:
            attempt.from_step, attempt.first_step_at = begun[-1]["step"], begun[-1].get("time")
            attempt.reached = max([step + 1 for step in steps], default=attempt.from_step)
        attempt.saved = manifest.step_of(saved[0]) if saved else None
        attempt.ended, attempt.why = metrics.now(), why
        self._write()

    def _write(self) -> None:
        story = Attempts(numbers=self.identity.numbers, attempts=self.attempts)
        write_json(self.folder / FILE, story.model_dump())


def requested(folder: Path, of: Identity) -> bool:
    """Whether a call knew that the run of these settings was done, and no training has begun since then."""
    try:
        return (folder / SEEN).read_text(encoding="utf-8") == of.numbers
    except FileNotFoundError:
        return False


def initial_size(path: Path) -> int:
    """Bytes of the initial weights.

    Raises:
        UserError: they are missing.
    """
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the rule that makes it (snakemake {path}).") from None
