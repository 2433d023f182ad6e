"""Slurm requests of jobs (Snakemake resources for snakemake-executor-plugin-slurm) and queries of its controller."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from typing import Any

from shardlab.errors import UserError
from shardlab.settings.sites import Queue, Site, Slurm, Stage

LIVE = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING")
"""States of a job that has not ended."""
PAUSES = (0, 2, 5, 10, 20)
"""Seconds to wait before the first query of Slurm's controller, and after each unanswered one."""
PATIENCE = 60.0
"""Seconds to wait for a client command: without its daemon, sacct waits for ever, and others for minutes."""
PACKED = "SHARDLAB_PACKED"
"""Environment variable in a job whose node several runs share (`shardlab pack`)."""
TIME_LIMIT = "time limit"
"""Reason to stop a training whose job is near its time limit."""


def path_obstacle(python: str) -> str | None:
    """Return what to do if Slurm jobs cannot start with this Python; None if they can.

    Snakemake writes its path unquoted into the job's script.
    """
    if shlex.quote(python) == python:
        return None
    return (
        f"the path of {python} has characters that are special to a shell, and Snakemake writes it unquoted into Slurm "
        "jobs; move the project to a folder without spaces, quotes and $, or run it without Slurm"
    )


def job_id() -> str | None:
    """Return the id of the Slurm job that this process belongs to, or None."""
    return os.environ.get("SLURM_JOB_ID")


def holder() -> str | None:
    """Return the name of this process's job for a lock file, or None."""
    return f"Slurm job {job_id()}" if job_id() else None


def client(words: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a client command of Slurm to its end.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it did not end within ``PATIENCE``.
    """
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)


def answer_or_none(words: list[str]) -> str | None:
    """Return the output of a client command, which may be empty; None, after a warning, if it does not end in time.
    What a command that fails says is a warning, too, unless it does not know the job.
    """
    try:
        done = client(words)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"warning: Slurm does not answer ({error}).", file=sys.stderr)
        return None
    if done.returncode and done.stderr.strip() and "invalid job id" not in done.stderr.lower():
        print(f"warning: {words[0]}: {done.stderr.strip().splitlines()[0]}", file=sys.stderr)
    return done.stdout


def answer(words: list[str]) -> str:
    """Return the output of a query of Slurm's controller, which may be unavailable for a moment; empty for an unknown
    job.

    Raises:
        UserError: it does not answer at all.
    """
    reason = ""
    for pause in PAUSES:
        time.sleep(pause)
        try:
            done = client(words)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
        else:
            if done.returncode == 0:
                return done.stdout
            reason = done.stderr.strip() or f"status {done.returncode}"
            if "invalid job id" in reason.lower():
                return ""
    raise UserError(
        f"Slurm does not answer ({words[0]}: {reason.splitlines()[0]}), so another job may already be "
        "training; run the same command again once it answers."
    )


def in_queue(holder: str) -> bool:
    """Return whether a lock's holder is another Slurm job that has not ended.

    Not every file system shares locks between nodes.

    Raises:
        UserError: Slurm does not answer.
    """
    job = re.fullmatch(r"Slurm job (\d+)", holder)
    if job is None or job[1] == job_id() or (shutil.which("squeue") is None and job_id() is None):
        return False
    return answer(["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job[1]}"]).strip() in LIVE


def seconds_left() -> float | None:
    """Return the seconds until this job's time limit; None without a job or a limit, or if Slurm does not answer."""
    if not (job := job_id()) or shutil.which("squeue") is None:
        return None
    try:
        left = answer(["squeue", "--noheader", f"--jobs={job}", "--format=%L"]).strip()
    except UserError:
        return None
    return seconds(left)


def seconds(text: str) -> float | None:
    """Convert Slurm's D-HH:MM:SS, HH:MM:SS or MM:SS.mmm; None for UNLIMITED or any other text."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if match is None:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4])


def requeue(why: str) -> bool:
    """Requeue this process's own job, if allowed and not cancelled; Slurm then ends this process.

    Needs no Snakemake: a run continues over any number of time limits, even if its driver has ended. ``why`` is the
    reason to stop: the time limit, SIGUSR1 which means the same, or another one if the job is preempted. A job that
    other runs share requeues itself when all have stopped.
    """
    if not (job := job_id()) or PACKED in os.environ:
        return False
    shown = answer_or_none(["scontrol", "show", "job", "--oneliner", job]) or ""
    fields = dict(re.findall(r"\b(Requeue|PreemptTime|StartTime)=(\S+)", shown))
    # Of this start: Slurm keeps the time of earlier preemptions.
    preempted = fields.get("PreemptTime", "None") not in ("None", "Unknown") and (
        fields["PreemptTime"] >= fields.get("StartTime", "")
    )
    if fields.get("Requeue") != "1" or not (preempted or why in (TIME_LIMIT, "SIGUSR1")):
        return False
    try:
        return client(["scontrol", "requeue", job]).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


SIZED = (
    "devices",
    "nodes",
    "mem_mb",
    "tasks_per_node",
    "cpus_per_task",
    "gres",
    "slurm_extra",
    "runtime",
    "slurm_partition",
    "qos",
    "constraint",
)
"""Resources that may depend on the size of a job."""


def queue_for(slurm: Slurm, stage: Stage, nodes: int, gpus_per_node: int) -> Queue:
    """Return the queue that takes a stage's job of this size.

    Raises:
        UserError: none does; names the limits.
    """
    if queue := slurm.queue_for(stage, nodes, gpus_per_node):
        return queue
    every = {name: slurm.queues[name].limits for name in slurm.queue_names(stage)}
    most = "; ".join(f"{name}: {', '.join(f'{key} {value}' for key, value in every[name].items())}" for name in every)
    raise UserError(
        f"{stage} requests {nodes} x {gpus_per_node} GPUs (nodes x GPUs per node), and no queue of the site's file "
        f"takes that ({most}); set nodes and ranks_per_node to less, or slurm.queue to other queues."
    )


def resources(
    site: Site, stage: Stage, nodes: int, devices_per_node: int, runtime: int | None = None
) -> dict[str, Any]:
    """Return the resources of a stage's job with this many devices; memory in MiB per node.

    ``runtime``, in minutes, is for stages that are shorter than a training, unless the site sets it.

    Every job uses the plugin's `mpi` mode: its command runs once, on the first node, outside of any job step, so that
    `shardlab launch` can start job steps, and signals from Slurm reach the ranks. Empty for a site without Slurm.

    Raises:
        UserError: no queue of the site takes such a job.
    """
    if site.slurm is None:
        return {}
    slurm = site.slurm
    queue = queue_for(slurm, stage, nodes, devices_per_node)
    requested: dict[str, Any] = {
        "devices": nodes * devices_per_node,
        "nodes": nodes,
        "mem_mb": devices_per_node * slurm.memory_mb_per_rank,
        "runtime": slurm.minutes(stage, queue, runtime),
    }
    # The plugin requires at least two tasks per node; `shardlab launch` starts one step task on each in any case.
    tasks = max(2, devices_per_node)
    cores = -(-devices_per_node * site.cpus_per_rank // tasks)
    requested |= {"mpi": "srun", "tasks_per_node": tasks, "cpus_per_task": cores}
    # The same for every stage: Snakemake groups jobs only if these agree.
    flags = [*queue.flags, "--open-mode=append", "--requeue" if slurm.requeue else "--no-requeue"]
    of_a_node = ":".join([*filter(None, [slurm.gpu_type]), str(devices_per_node)])
    if slurm.gpus == "gres" and "-" not in (slurm.gpu_type or ""):
        # tasks_per_gpu: without it the plugin requests tasks times GPUs.
        requested |= {"gres": f"gpu:{of_a_node}", "tasks_per_gpu": 0}
    elif slurm.gpus:  # the plugin refuses a type with a dash; Slurm's other option requests the same
        flags.append(f"--gpus-per-node={of_a_node}")
    named = {
        "slurm_partition": queue.partition,
        "slurm_account": slurm.account,
        "qos": queue.qos,
        "constraint": queue.constraint,
        "slurm_extra": " ".join(flags) or None,
    }
    return requested | {key: value for key, value in named.items() if value is not None}


def packed_step(devices_per_node: int) -> list[str]:
    """Return srun's further options for a step that shares its node with others; empty for one that has it alone."""
    if PACKED not in os.environ:
        return []
    # Memory is the job's: a step waits for GPUs and cores that others still have, but where memory is short it fails.
    gpus = [f"--gpus-per-node={devices_per_node}"] if "SLURM_GPUS_ON_NODE" in os.environ else []
    return ["--exact", "--mem=0", *gpus]
