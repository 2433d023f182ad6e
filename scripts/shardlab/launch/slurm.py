"""What a job asks Slurm for: Snakemake resources, as snakemake-executor-plugin-slurm reads them."""

from typing import Any

from shardlab.settings.sites import Site


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
