"""What a job asks Slurm for: Snakemake resources, as snakemake-executor-plugin-slurm reads them."""

import os
import re
import shutil
import subprocess
from typing import Any

from shardlab.settings.sites import Site

LIVE = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING")
"""States of a job that has not ended."""


def job_id() -> str | None:
    """The Slurm job that this process belongs to, or None."""
    return os.environ.get("SLURM_JOB_ID")


def holder() -> str | None:
    """Name of this process's job for a lock file, or None."""
    return f"Slurm job {job_id()}" if job_id() else None


def in_queue(holder: str) -> bool:
    """Whether a lock's holder is another Slurm job that has not ended.

    Not every file system carries a lock from one node to another.
    """
    job = re.fullmatch(r"Slurm job (\d+)", holder)
    if job is None or job[1] == job_id() or shutil.which("squeue") is None:
        return False
    queue = subprocess.run(
        ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job[1]}"], capture_output=True, text=True
    )
    return queue.stdout.strip() in LIVE


def resources(site: Site, nodes: int, devices_per_node: int, runtime: int | None = None) -> dict[str, Any]:
    """Resources of a job with that many devices; memory in MiB for a node, ``runtime`` in minutes.

    Every job goes the plugin's `mpi` way: its command runs once, on the first node, outside of any job
    step, so that launch.py can start its own, and signals from Slurm reach the ranks.
    """
    slurm = site.slurm
    memory = devices_per_node * (slurm.memory_mb_per_rank if slurm else 2000)
    asked: dict[str, Any] = {"nodes": nodes, "mem_mb": memory, "runtime": runtime or (slurm.runtime if slurm else 60)}
    if slurm is None:
        return asked
    # The plugin refuses fewer than two tasks on a node; launch.py starts one step task on each, whatever stands here.
    tasks = max(2, devices_per_node)
    cores = -(-devices_per_node * site.cpus_per_rank // tasks)
    asked |= {"mpi": "srun", "tasks_per_node": tasks, "cpus_per_task": cores}
    flags = list(slurm.flags)
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
