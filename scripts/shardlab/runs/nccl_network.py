"""The network between nodes that NCCL, or RCCL, chose, from its log."""

import os
import re
from pathlib import Path

USED = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
TCP = "Socket"


def log_to(path: Path) -> bool:
    """Have this process's NCCL log to a file from its first communicator on; return whether it will.

    It will not if the user asked for a log, which then goes where it is expected.
    """
    if "NCCL_DEBUG" in os.environ:
        return False
    os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(path)}
    return True


def sentence(log: str) -> str | None:
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
