"""Snakemake after a kill: its lock, and what it does not know of."""

import base64
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import IO

from shardlab.errors import UserError
from shardlab.files import flock, write_json
from shardlab.records import done
from shardlab.runs.attempts import CALL, SEEN, requested
from shardlab.settings import run_identity
from shardlab.settings.types import Run, sealed, was_edited

PATIENCE = 5.0
"""Seconds to wait for a short call (a dry run, a graph) that holds the lock."""
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

    Raises:
        UserError: a run.json is a folder.
    """
    os.environ.setdefault(CALL, uuid.uuid4().hex)
    for run in runs:
        name = f"results/{run.strategy}/{run.workload}"
        seen = folder / name / SEEN
        path = folder / f"{name}.done"
        _repair_settings(run, folder / name / "run.json")
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


def _repair_settings(run: Run, path: Path) -> None:
    """Rewrite a damaged or edited run.json, keeping its old time, so that nothing becomes outdated because of it.

    One that depends on the run's plan is removed, so that its rule writes it again.
    """
    try:
        if not was_edited(json.loads(path.read_bytes())):
            return
    except FileNotFoundError:
        return
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; remove it, then run the same command again.") from None
    except ValueError:
        pass
    if run.recipe.activation_checkpointing == "auto":
        path.unlink()
        return
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    write_json(path, sealed(run))
    os.utime(path, ns=times)


def clear_stale_locks(folder: Path) -> None:
    """Remove the locks of a driver that was killed in the project's ``folder``; hold them for this process.

    The system releases the lock of a dead process. If another driver is running, Snakemake's own locks stay and report
    it; so they do if the last one ran on another machine, as not every file system shares locks between machines.

    Raises:
        UserError: the file system has no locks.
    """
    place = folder / ".snakemake"
    place.mkdir(exist_ok=True)
    file = (place / "driver.lock").open("a+", encoding="utf-8")
    if not flock(file, PATIENCE):
        return
    file.seek(0)
    if (last := file.read().strip()) and last != os.uname().nodename and any((place / "locks").glob("*")):
        return
    shutil.rmtree(place / "locks", ignore_errors=True)
    file.truncate(0)
    file.write(os.uname().nodename)
    file.flush()
    _held.append(file)
