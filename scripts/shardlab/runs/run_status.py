"""State of a run, from its folder and Slurm's queue, for `shardlab status`. Changes nothing."""

import shutil
import statistics
from pathlib import Path
from typing import NamedTuple

from shardlab.errors import UserError
from shardlab.files import flock
from shardlab.records import done, manifest, metrics
from shardlab.records.reports import TrainReport
from shardlab.runs import attempts, script_place, slurm
from shardlab.runs.slurm_reattach import name_of
from shardlab.settings.run_identity import difference, identity_of, of_numbers, of_run
from shardlab.settings.types import Run

RECENT = 20
"""Steps whose median time is used to estimate the remaining time."""
DONE, NOT_BEGUN = "done", "not begun"
"""Two of the actions that are counted."""
NO_REASON = ("", "None", "(null)")
"""What squeue says of a job that the scheduler has not looked at."""


class Progress(NamedTuple):
    """How far a training has come."""

    step: int = 0
    steps: int | None = None
    loss: float | None = None
    """Of the last step that has one."""
    samples_per_second: float | None = None
    seconds_left: float | None = None
    """Estimated, as if it were running."""


def alive(folder: Path) -> str | None:
    """Return the holder of a run's lock; None if it is free.

    Raises:
        UserError: the file system has no locks, or Slurm does not answer.
    """
    lock = folder / ".lock"
    if not lock.exists():
        return None
    with lock.open("a+", encoding="utf-8") as file:
        file.seek(0)
        holder = file.read().strip()
        if not flock(file):
            return holder or "another process"
        return holder if holder and slurm.in_queue(holder) else None


def trained(run: Run, folder: Path) -> str | None:
    """Return how the finished training in a folder is not that of ``run``, or what is wrong with it.

    Empty if it is that of ``run``, None if there is none.
    """
    if not (folder / "train.json").exists():
        return None
    try:
        report = TrainReport.read(folder / "train.json", "train again")
    except UserError as error:
        return str(error)
    key = difference(of_run(run.model_dump(mode="json")), of_run(report.settings))
    return f"a different {key}" if key else ""


def next_action(run: Run, folder: Path, queued: dict[str, str] | None = None) -> str:
    """Describe what the next call will do with a run, in one sentence; ``queued``: see ``queue``."""
    if holder := alive(folder):
        return f"alive: {holder} trains it; the next call follows it or waits for it"
    if waiting := (queued or {}).get(f"{run.strategy}/{run.workload}"):
        return f"{waiting}; the next call follows it"
    other = trained(run, folder)
    changed = done.changed(folder)
    if other == "" and not changed:
        if folder.with_name(f"{folder.name}.done").exists():
            return DONE
        if attempts.requested(folder, identity_of(run, "")):
            return "finished, and retraining was requested: the next call trains from scratch"
        return "finished, but not recorded by Snakemake: the next call uses it as it is"
    reason = f" {other.rstrip('.')};" if other else ""
    skipped = f" ({changed})" if changed else ""
    for place in manifest.saved(folder):
        try:
            found = manifest.read(place)
        except UserError as error:
            skipped += f" ({error})"
            continue
        if key := difference(of_numbers(run.model_dump(mode="json")), of_numbers(found.settings)):
            return f"checkpoint with a different {key}: change it back, or train with --config restart=true{skipped}"
        return f"resumable from step {found.step}; {_last(folder)}{skipped}"
    if run.script and script_place.has_checkpoints(folder):
        story = attempts.read_story(folder)
        if story is None or story.numbers != identity_of(run, "").numbers:
            return "checkpoints of its script before a change: undo it, or train with --config restart=true"
        return f"resumable, if {run.script} reads what it saved in its checkpoints folder; {_last(folder)}"
    if not (reason or skipped or attempts.history(folder)):
        return NOT_BEGUN
    return f"from its first step:{reason} no checkpoint; {_last(folder)}{skipped}"


def queue(folder: Path) -> dict[str, str]:
    """Return {strategy/workload: job number, and squeue's reason} of a project folder's waiting Slurm jobs."""
    if shutil.which("squeue") is None:
        return {}
    words = ["squeue", "--me", "--noheader", "--states=PENDING", f"--name={name_of(folder)}", "--format=%i|%r|%k"]
    listed = (slurm.answer_or_none(words) or "").splitlines()
    prefix = "rule_train_wildcards_"
    jobs = [line.split("|", 2) for line in listed]
    # Names of strategies and workloads may contain underscores: the last one separates them, which is enough for a
    # table.
    return {
        "/".join(comment.removeprefix(prefix).rsplit("_", 1)): f"job {job}"
        + ("" if reason in NO_REASON else f" waits: {reason}")
        for job, reason, comment in jobs
        if comment.startswith(prefix)
    }


def progress(folder: Path) -> Progress:
    """Return how far the training in a run's folder has come."""
    records = metrics.read(folder / metrics.NAME)
    taken = [record for record in records if record["kind"] == "train"]
    steps = next((record.get("steps") for record in reversed(records) if record["kind"] == "attempt"), None)
    if not taken:
        return Progress(steps=steps)
    step = taken[-1]["step"] + 1
    loss = next((record["loss"] for record in reversed(taken) if record["loss"] is not None), None)
    # The first step of a script has no time, nor have lines that came all at once.
    recent = [record for record in taken[-RECENT:] if record["seconds"]]
    if not recent:
        return Progress(step, steps, loss)
    seconds = statistics.median(record["seconds"] for record in recent)
    speed = statistics.median(record["samples"] for record in recent) / seconds
    return Progress(step, steps, loss, speed, None if steps is None else (steps - step) * seconds)


def _last(folder: Path) -> str:
    """Describe how the last attempt ended."""
    story = attempts.history(folder)
    if not story:
        return "never begun"
    attempt = story[-1]
    place = f"job {attempt.slurm_job_id}" if attempt.slurm_job_id else attempt.host
    return f"attempt {attempt.number} ({place}) {attempt.why or 'died without reporting'}"
