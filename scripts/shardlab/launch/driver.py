"""Snakemake after a kill: its lock, and what it does not know of. Nothing here imports torch."""

import base64
import os
import re
import shutil
import uuid
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import IO

from shardlab.files import flock
from shardlab.launch.attempts import CALL, SEEN

PATIENCE = 5.0
"""Seconds in which a short call (a dry run, a graph) may be in the way."""
_held: list[IO[str]] = []


def works(arguments: list[str]) -> bool:
    """Whether a call of Snakemake runs jobs of its own, to judge by its arguments."""
    looks = {"--dry-run", "--dryrun", "--lint", "--dag", "--rulegraph", "--unlock", "--report", "--list", "--mode"}
    return not any(word in looks or re.fullmatch(r"-\w*n\w*", word) for word in arguments)


def of_one_run(arguments: list[str]) -> bool:
    """Whether a call of Snakemake was made by another one for jobs that have wildcards, and so do not need all runs."""
    if "--target-jobs" not in arguments:
        return False
    behind = arguments[arguments.index("--target-jobs") + 1 :]
    return all("=" in target for target in takewhile(lambda word: not word.startswith("-"), behind))


def note_done(folder: Path, runs: Iterable[tuple[str, str]]) -> None:
    """Note which runs (strategy, workload) are done as this call begins: to train such a one again is then meant.

    A run that ended after its driver's death is done, whatever Snakemake believes of its `.done`, which is written
    last and whole.
    """
    os.environ.setdefault(CALL, uuid.uuid4().hex)
    for strategy, workload in runs:
        name = f"results/{strategy}/{workload}"
        seen = folder / name / SEEN
        if not (folder / f"{name}.done").exists():
            seen.unlink(missing_ok=True)
        elif seen.parent.is_dir():
            seen.touch()
            if _held:
                mark = base64.urlsafe_b64encode(f"{name}.done".encode()).decode()
                (folder / ".snakemake" / "incomplete" / mark).unlink(missing_ok=True)


def take_over(folder: Path) -> None:
    """Remove the locks of a driver that was killed in the project's ``folder``; hold them for this process.

    The system gives the lock of a dead process back. Where another one lives, Snakemake's own locks stay and say so;
    where the last one ran on another machine, too: not every file system carries locks between machines.
    """
    place = folder / ".snakemake"
    place.mkdir(exist_ok=True)
    file = (place / "driver.lock").open("a+", encoding="utf-8")
    if not flock(file.fileno(), PATIENCE):
        return
    file.seek(0)
    if (last := file.read().strip()) and last != os.uname().nodename and any((place / "locks").glob("*")):
        return
    shutil.rmtree(place / "locks", ignore_errors=True)
    file.truncate(0)
    file.write(os.uname().nodename)
    file.flush()
    _held.append(file)
