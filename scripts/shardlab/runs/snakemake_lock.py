"""Snakemake's lock, for which a second call waits; what it does not know of after a kill, or a change of settings."""

import base64
import fcntl
import json
import os
import re
import shutil
import signal
import sys
import uuid
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import IO

from shardlab.files import flock, write_json
from shardlab.records import done
from shardlab.runs.attempts import CALL, SEEN, requested
from shardlab.settings import run_identity
from shardlab.settings.types import Run, sealed, was_edited

PATIENCE = 5.0
"""Seconds to wait for a short call that holds the lock, before saying so."""
_held: list[IO[str]] = []


def runs_jobs(arguments: list[str]) -> bool:
    """Return whether a call of Snakemake runs jobs itself, judging by its arguments."""
    looks = {"--dry-run", "--dryrun", "--lint", "--dag", "--rulegraph", "--unlock", "--report", "--list", "--mode"}
    return not any(word in looks or re.fullmatch(r"-\w*n\w*", word) for word in arguments)


def is_for_single_runs(arguments: list[str]) -> bool:
    """Return whether another Snakemake made this call for jobs that have wildcards, and so do not need all runs."""
    if "--target-jobs" not in arguments:
        return False
    after = arguments[arguments.index("--target-jobs") + 1 :]
    return all("=" in target for target in takewhile(lambda word: not word.startswith("-"), after))


def note_done(folder: Path, runs: Iterable[Run]) -> None:
    """Record which runs are done as this call begins: if the call trains such a run, retraining was requested.

    The note names the settings, and stays until that training begins: Snakemake removes `.done` when it submits the
    job, and may be killed while the job waits. A run that ended after its driver's death is done, whatever Snakemake
    assumes about its `.done`, which is written last and atomically. A run whose files have changed since is not done.
    """
    os.environ.setdefault(CALL, uuid.uuid4().hex)
    for run in runs:
        name = f"results/{run.strategy}/{run.workload}"
        seen = folder / name / SEEN
        path = folder / f"{name}.done"
        if _held and (reason := done.changed(folder / name)):
            print(f"warning: {reason}; the run is trained again from its last checkpoint.", file=sys.stderr)
            path.unlink()
            seen.unlink(missing_ok=True)  # retraining from scratch was not requested
        elif (
            path.exists()
            and seen.parent.is_dir()
            and not requested(seen.parent, identity := run_identity.identity_of(run, ""))
        ):
            seen.write_text(identity.numbers, encoding="utf-8")
            if _held:
                mark = base64.urlsafe_b64encode(f"{name}.done".encode()).decode()
                (folder / ".snakemake" / "incomplete" / mark).unlink(missing_ok=True)


def bring_up_to_date(run: Run, path: Path) -> None:
    """Rewrite a run.json that is damaged or edited, or whose keys of place and time are no longer those of ``run``.

    It keeps its old time, so that nothing becomes outdated because of it.
    """
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return
    except ValueError:
        found = None
    planned = sealed(run)
    edited = found is None or was_edited(found)
    if not edited and (found == planned or run_identity.of_run(found) != run_identity.of_run(planned)):
        return
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    write_json(path, planned)
    os.utime(path, ns=times)


def take(folder: Path) -> None:
    """Hold the lock of the project's ``folder`` for this process: wait for another call, take over from a killed one.

    The system releases the lock of a dead process; Snakemake's own locks, which stay, are then removed. They stay if
    the last call ran on another machine, as not every file system shares locks between machines: Snakemake reports it.

    Raises:
        UserError: the file system has no locks.
    """
    place = folder / ".snakemake"
    place.mkdir(exist_ok=True)
    file = (place / "driver.lock").open("a+", encoding="utf-8")
    if not flock(file, PATIENCE):
        host, _, number = _last(file).partition(" ")
        handler = signal.signal(signal.SIGINT, signal.SIG_DFL)  # without Python's traceback
        print(
            f"Process {number} on {host} runs the jobs of another call in this folder. This call waits until that one "
            "has ended, then goes on; Ctrl-C ends this one alone.",
            file=sys.stderr,
            flush=True,
        )
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        signal.signal(signal.SIGINT, handler)
    host = _last(file).partition(" ")[0]
    if host and host != os.uname().nodename and any((place / "locks").glob("*")):
        return
    shutil.rmtree(place / "locks", ignore_errors=True)
    file.truncate(0)
    file.write(f"{os.uname().nodename} {os.getpid()}")
    file.flush()
    _held.append(file)


def _last(file: IO[str]) -> str:
    """Return the machine and the process that held the lock last."""
    file.seek(0)
    return file.read().strip()
