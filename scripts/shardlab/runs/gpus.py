"""GPUs of a node as its driver lists them, why PyTorch sees fewer than a run needs, the network between them; cores."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from shardlab.settings import torch_releases

FIELDS = ("index", "name", "driver_version", "mig.mode.current")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Environment variables that hide GPUs."""
USED = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
TCP = "Socket"


class Gpu(NamedTuple):
    """A GPU as nvidia-smi lists it."""

    number: int
    name: str
    driver: str
    mig: bool
    """True if split into instances (Multi-Instance GPU), of which a process sees one."""


def listed() -> list[Gpu]:
    """Return the GPUs that NVIDIA's driver lists on this node; none without nvidia-smi, or if it fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    words = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    rows = [line.split(", ") for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines()]
    return [
        Gpu(int(row[0]), row[1], row[2], row[3] == "Enabled")
        for row in rows
        if len(row) == len(FIELDS) and row[0].isdigit()
    ]


def cores() -> str:
    """Return the CPU cores that this process may run on, as Linux lists them: 0-3,8. Empty on another system."""
    status = Path("/proc/self/status")
    found = re.search(r"^Cpus_allowed_list:\s+(\S+)", status.read_text(), re.MULTILINE) if status.exists() else None
    return found[1] if found else ""


def why_missing(cuda: str | None, hip: str | None) -> str:
    """Return what there is to see where PyTorch sees fewer GPUs than a run needs, and the keys that change it.

    ``cuda`` and ``hip`` are the versions that PyTorch was built for (``torch.version``).
    """
    if hip is None and cuda is None:
        return "this PyTorch is a CPU build; install one for the GPUs, or set device to cpu in the site's file"
    found = listed()
    if problem := old_driver(found, cuda):
        return problem
    seen = [f"nvidia-smi lists {len(found)} on {os.uname().nodename}"] if hip is None else []
    seen += ["they are split (MIG), and a process sees one instance"] if any(gpu.mig for gpu in found) else []
    seen += [f"{name} is {os.environ[name]}" for name in VISIBLE if name in os.environ]
    keys = "set slurm.gpus, slurm.gpu_type or container.flags (--nv) in the site's file, or lower ranks_per_node"
    return "; ".join([*seen, keys])


def old_driver(gpus: list[Gpu], cuda: str | None) -> str | None:
    """Return a sentence if the driver is older than PyTorch's CUDA needs; None if it is not."""
    needed = torch_releases.driver_needed(cuda)
    if not gpus or needed is None or int(gpus[0].driver.split(".")[0]) >= needed:
        return None
    return (
        f"the driver {gpus[0].driver} is too old for this PyTorch's CUDA {cuda}, which needs {needed} or newer; use "
        "nodes with a newer driver, or a PyTorch built for an older CUDA"
    )


def other_torch(installed: str, rocm: bool) -> str | None:
    """Return a sentence if this project does not take this version of PyTorch; None if it does."""
    if (reason := torch_releases.refusal(installed)) is None:
        return None
    return f"{reason}; {'use an image with such a PyTorch for ROCm' if rocm else f'install {torch_releases.newest()}'}"


def log_nccl_to(path: Path) -> bool:
    """Have this process's NCCL log to a file from its first communicator on; return whether it will.

    It will not if the user asked for a log, which then goes where it is expected.
    """
    if "NCCL_DEBUG" in os.environ:
        return False
    os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(path)}
    return True


def network(log: str) -> str | None:
    """Return what a log says about the network; None if it says nothing."""
    found = USED.search(log)
    if found is None:
        return None
    if found[1] == TCP:
        return (
            "network: between nodes NCCL uses TCP, which is slow; if they have InfiniBand or Slingshot, a library, a "
            "plugin or a bind is missing (docs/cluster.md, GPUs between nodes)"
        )
    return f"network: between nodes NCCL uses {found[1]}"
