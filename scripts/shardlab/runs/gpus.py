"""GPUs of a node as its driver lists them, why PyTorch sees fewer than a run needs, the network between them; cores."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from shardlab.settings import torch_releases

FIELDS = ("index", "name", "driver_version", "mig.mode.current", "memory.used")
BUSY_MIB = 2048
"""Memory use above which an idle GPU counts as used by another process: a CUDA context takes about 0.5 GiB."""
IN_CONTAINER = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
DEVICES = Path("/dev")
USED = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
TCP = "Socket"


class Gpu(NamedTuple):
    """A GPU as nvidia-smi lists it."""

    number: int
    name: str
    driver: str
    mig: bool
    """True if split into instances (Multi-Instance GPU), of which a process sees one."""
    used_mib: int


def listed() -> list[Gpu]:
    """Return the GPUs that NVIDIA's driver lists on this node; none without nvidia-smi, or if it fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    words = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    rows = [line.split(", ") for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines()]
    return [
        Gpu(int(row[0]), row[1], row[2], row[3] == "Enabled", int(row[4]) if row[4].isdigit() else 0)
        for row in rows
        if len(row) == len(FIELDS) and row[0].isdigit()
    ]


def cores() -> str:
    """Return the CPU cores that this process may run on, as Linux lists them: 0-3,8. Empty on another system."""
    status = Path("/proc/self/status")
    found = re.search(r"^Cpus_allowed_list:\s+(\S+)", status.read_text(), re.MULTILINE) if status.exists() else None
    return found[1] if found else ""


def why_missing(found: int, cuda: str | None, hip: str | None) -> str:
    """Return cause and remedy if PyTorch sees ``found`` GPUs and a run needs more.

    ``cuda`` and ``hip`` are the versions that PyTorch was built for (``torch.version``).
    """
    if hip is None and cuda is None:
        return "this PyTorch is a CPU build; install one for the GPUs, or set device to cpu in the site's file"
    if hip is not None:
        return "check ROCR_VISIBLE_DEVICES, and slurm.gpus and container.binds in the site's file"
    gpus = listed()
    if not gpus:
        inside = any(name in os.environ for name in IN_CONTAINER)
        if inside and (DEVICES / "nvidiactl").exists():
            return "the container was started without --nv; add it to container.flags in the site's file"
        return "nvidia-smi lists none either, so the job has none; request GPUs with slurm.gpus in the site's file"
    if problem := old_driver(gpus, cuda):
        return problem
    if any(gpu.mig for gpu in gpus):
        return (
            "its GPUs are split (MIG), and a process sees one instance; request whole GPUs with slurm.gpu_type in the "
            "site's file, or set ranks_per_node to 1"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and found < len(gpus):
        return f"CUDA_VISIBLE_DEVICES={visible} hides the others of {len(gpus)}; unset it, or lower ranks_per_node"
    return "lower ranks_per_node, or request more GPUs per node (slurm.gpus in the site's file)"


def old_driver(gpus: list[Gpu], cuda: str | None) -> str | None:
    """Return a sentence if the driver is older than PyTorch's CUDA needs; None if it is not."""
    needed = torch_releases.driver_needed(cuda)
    if not gpus or needed is None or int(gpus[0].driver.split(".")[0]) >= needed:
        return None
    return (
        f"the driver {gpus[0].driver} is too old for this PyTorch's CUDA {cuda}, which needs {needed} or newer; use "
        "nodes with a newer driver, or a PyTorch built for an older CUDA"
    )


def busy(gpus: list[Gpu]) -> list[str]:
    """Return a sentence for each GPU that another process uses before a run has started."""
    return [
        f"GPU {gpu.number} ({gpu.name}) has {gpu.used_mib / 1024:.1f} GiB in use by another process; request exclusive "
        "GPUs (slurm.gpus, or --exclusive among slurm.flags in the site's file), or end that process"
        for gpu in gpus
        if gpu.used_mib > BUSY_MIB
    ]


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
