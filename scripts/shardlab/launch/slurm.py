"""What a job asks Slurm for: Snakemake resources, as snakemake-executor-plugin-slurm reads them."""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable
from typing import Any

from shardlab.errors import UserError
from shardlab.settings.sites import Site, Stage

LIVE = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING")
"""States of a job that has not ended."""
PAUSES = (0, 2, 5, 10, 20)
"""Seconds to wait before Slurm's controller is asked for the first time, and after each question without an answer."""


TIME_LIMIT = "time limit"
"""Why a training is told to stop whose job's time is nearly over."""


def path_obstacle(python: str) -> str | None:
    """What to do where Slurm jobs cannot start with this Python; None where they can.

    Snakemake writes its path into the job's script as it stands.
    """
    if shlex.quote(python) == python:
        return None
    return (
        f"the path of {python} has characters that a shell takes apart, and Snakemake writes it into Slurm jobs as it "
        "stands; move the project to a folder without spaces, quotes and $, or run it without Slurm"
    )


def job_id() -> str | None:
    """The Slurm job that this process belongs to, or None."""
    return os.environ.get("SLURM_JOB_ID")


def holder() -> str | None:
    """Name of this process's job for a lock file, or None."""
    return f"Slurm job {job_id()}" if job_id() else None


def answer(words: list[str]) -> str:
    """Output of a command that asks Slurm's controller, which may not answer for a moment; empty for an unknown job.

    Raises:
        UserError: it does not answer at all.
    """
    reason = ""
    for pause in PAUSES:
        time.sleep(pause)
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
        else:
            if done.returncode == 0:
                return done.stdout
            reason = done.stderr.strip() or f"status {done.returncode}"
            if "invalid job id" in reason.lower():
                return ""
    raise UserError(
        f"Slurm does not answer ({words[0]}: {reason.splitlines()[0]}), so it is not known whether another job already "
        "trains; run the same command again once it does."
    )


def in_queue(holder: str) -> bool:
    """Whether a lock's holder is another Slurm job that has not ended.

    Not every file system carries a lock from one node to another.

    Raises:
        UserError: Slurm does not answer.
    """
    job = re.fullmatch(r"Slurm job (\d+)", holder)
    if job is None or job[1] == job_id() or (shutil.which("squeue") is None and job_id() is None):
        return False
    return answer(["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job[1]}"]).strip() in LIVE


def seconds_left() -> float | None:
    """Until the time limit of this process's job; None without a job or a limit, or if Slurm does not answer."""
    if not (job := job_id()) or shutil.which("squeue") is None:
        return None
    try:
        left = answer(["squeue", "--noheader", f"--jobs={job}", "--format=%L"]).strip()
    except UserError:
        return None
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", left)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


ACCOUNTED = {
    **{"State": "state", "NodeList": "nodes", "AllocTRES": "allocated", "Submit": "submitted", "Start": "started"},
    **{"Elapsed": "elapsed", "CPUTime": "cpu time allocated", "TotalCPU": "cpu time used"},
    "ConsumedEnergyRaw": "energy (J)",
}
"""sacct's fields, and what they are called here."""


def accounting(jobs: Iterable[str]) -> dict[str, dict[str, str]]:
    """What Slurm's accounting says of jobs, by their number; nothing without it. Empty fields are left out."""
    listed = ",".join(sorted(set(jobs)))
    if not listed or shutil.which("sacct") is None:
        return {}
    words = ["sacct", "-X", "--noheader", "--parsable2", f"--jobs={listed}", f"--format=JobID,{','.join(ACCOUNTED)}"]
    rows = [line.split("|") for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines()]
    return {
        job: {name: value for name, value in zip(ACCOUNTED.values(), values, strict=True) if value}
        for job, *values in rows
    }


def requeue(why: str) -> bool:
    """Put this process's own job back into the queue, if it may be and was not cancelled; Slurm then ends this process.

    Needs no Snakemake: a run goes on through as many time limits as it takes, whatever became of its driver.
    ``why`` is what it was told to stop for: the time limit, SIGUSR1 which means the same, or another if the job is
    preempted.
    """
    if not (job := job_id()):
        return False
    shown = subprocess.run(["scontrol", "show", "job", "--oneliner", job], capture_output=True, text=True).stdout
    fields = dict(re.findall(r"\b(Requeue|PreemptTime|StartTime)=(\S+)", shown))
    # Of this start: Slurm keeps the time at which an earlier one was preempted.
    preempted = fields.get("PreemptTime", "None") not in ("None", "Unknown") and (
        fields["PreemptTime"] >= fields.get("StartTime", "")
    )
    if fields.get("Requeue") != "1" or not (preempted or why in (TIME_LIMIT, "SIGUSR1")):
        return False
    return subprocess.run(["scontrol", "requeue", job], capture_output=True).returncode == 0


def resources(
    site: Site, stage: Stage, nodes: int, devices_per_node: int, runtime: int | None = None
) -> dict[str, Any]:
    """Resources of a stage's job with that many devices; memory in MiB for a node.

    ``runtime``, in minutes, is for stages that are shorter than a training, unless the site says otherwise.

    Every job goes the plugin's `mpi` way: its command runs once, on the first node, outside of any job
    step, so that launch.py can start its own, and signals from Slurm reach the ranks. A site without Slurm has
    nobody to ask.
    """
    if site.slurm is None:
        return {}
    slurm = site.slurm.of(stage)
    if stage in slurm.stages:
        runtime = slurm.stages[stage].runtime or runtime
    memory = devices_per_node * slurm.memory_mb_per_rank
    asked: dict[str, Any] = {"nodes": nodes, "mem_mb": memory, "runtime": runtime or slurm.runtime}
    # The plugin refuses fewer than two tasks on a node; launch.py starts one step task on each, whatever stands here.
    tasks = max(2, devices_per_node)
    cores = -(-devices_per_node * site.cpus_per_rank // tasks)
    asked |= {"mpi": "srun", "tasks_per_node": tasks, "cpus_per_task": cores}
    flags = list(slurm.flags)
    if stage == "train":
        flags += ["--open-mode=append"]
        flags += ["--requeue"] if slurm.requeue else ["--no-requeue"]
    if slurm.gpus == "gres":
        # tasks_per_gpu: without it the plugin asks for tasks times GPUs.
        asked |= {"gres": ":".join(["gpu", *filter(None, [slurm.gpu_type]), str(devices_per_node)]), "tasks_per_gpu": 0}
    elif slurm.gpus == "gpus-per-node":
        flags.append("--gpus-per-node=" + ":".join([*filter(None, [slurm.gpu_type]), str(devices_per_node)]))
    named = {
        "slurm_partition": slurm.partition,
        "slurm_account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "slurm_extra": " ".join(flags) or None,
    }
    return asked | {key: value for key, value in named.items() if value is not None}
