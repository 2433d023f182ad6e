"""Reattaching to Slurm jobs: a new call of Snakemake follows the jobs of one that died, instead of resubmitting them.

What this changes in the executor plugin (`patches/snakemake_slurm.py`): all calls in a folder give their jobs the
same name, by which the plugin asks for their states; a job that is live in the queue is followed and not submitted; and
one that Slurm forgets or preempts for good ends.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from shardlab.errors import UserError
from shardlab.patches import snakemake_slurm
from shardlab.runs import slurm
from shardlab.runs.attempts import read_story
from shardlab.settings import run_identity
from shardlab.settings.types import read_run

PATIENCE = 2
"""Consecutive looks at the queue after which a job that is missing, or stays preempted, counts as ended."""


def install(folder: Path) -> None:
    """Change the plugin, where Snakemake has loaded it, for calls in the project's ``folder``."""
    absent: dict[str, int] = {}
    snakemake_slurm.install(
        name_of(folder),
        find=lambda name, job: live_job(folder, name, job),
        settle=lambda states, followed: resolve_lost_jobs(states, followed, absent),
        patience=slurm.PATIENCE,
    )


def resolve_lost_jobs(states: dict[str, str], followed: set[str], absent: dict[str, int]) -> dict[str, str]:
    """Return the states of jobs, with an end for those that would be waited for forever; ``absent`` counts looks at
    them.
    """
    states = dict(states)
    for job in followed:
        if states.get(job) not in (None, "PREEMPTED"):
            absent.pop(job, None)
            continue
        absent[job] = absent.get(job, 0) + 1
        if absent[job] > PATIENCE:
            # Snakemake then checks whether the job's files exist.
            states[job] = "FAILED" if job in states else "UNKNOWN"
    return states


def name_of(folder: Path) -> str:
    """Return the name of all Slurm jobs of a project's folder."""
    return "shardlab-" + hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]


def live_job(folder: Path, name: str, job: Any) -> str | None:
    """Return the waiting or running Slurm job of a Snakemake job; None if there is none.

    Raises:
        UserError: Slurm does not answer.
    """
    if job.is_group() or shutil.which("squeue") is None:
        return None
    listed = slurm.answer(["squeue", "--me", "--noheader", f"--name={name}", "--format=%i|%T|%k"])
    for line in listed.splitlines():
        number, state, comment = line.split("|", 2)
        if state in slurm.LIVE and comment.startswith(f"rule_{job.rule.name}") and _does(number, job):
            return None if _trains_otherwise(folder, number, job) else number
    return None


def _trains_otherwise(folder: Path, number: str, job: Any) -> bool:
    """Return whether a Slurm job trains a run with settings that run.json no longer has."""
    if job.rule.name != "train":
        return False
    place = folder / "results" / job.wildcards_dict["strategy"] / job.wildcards_dict["workload"]
    try:
        story = read_story(place)
        settings = run_identity.identity_of(read_run(place / "run.json"), "").numbers
    except UserError:
        return False
    return story is not None and story.attempts[-1].slurm_job_id == number and story.numbers != settings


def _does(number: str, job: Any) -> bool:
    """Return whether a Slurm job's script is for this job. Its comment joins wildcards with _, which names also
    contain.
    """
    script = slurm.answer(["scontrol", "write", "batch_script", number, "-"])
    wildcards = ",".join(f"{key}={value}" for key, value in sorted(job.wildcards_dict.items()))
    target = f"{job.rule.name}:{wildcards}" if wildcards else job.rule.name
    words = script.replace("'", " ").replace('"', " ").split()
    return any(_sorted(word) == target for word in words)


def _sorted(word: str) -> str:
    rule, colon, wildcards = word.partition(":")
    return rule + colon + ",".join(sorted(wildcards.split(",")))
