"""The file system of the project's folder: its kind, free space and quota."""

import getpass
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from shardlab.runs import slurm

MOUNTS = Path("/proc/self/mounts")
LEAST_FILES = 1000
"""Files that a default matrix leaves, roughly."""


class Quota(NamedTuple):
    """A limit and what is used of it: bytes (KiB) and files; 0: no limit."""

    used: int
    limit: int
    files: int
    files_limit: int


def mount_of(folder: Path, mounts: str) -> tuple[str, str, str]:
    """Return device, mount point and type of the file system of a folder, from the text of /proc/self/mounts."""
    best = ("", "", "unknown")
    for line in mounts.splitlines():
        device, point, kind, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
        if folder.is_relative_to(point) and len(point) >= len(best[1]):
            best = (device, point, kind)
    return best


def look(folder: Path, space: int) -> tuple[list[str], list[str]]:
    """Return (what is to be known of a folder's file system, problems with it), as sentences.

    ``space``: bytes that are needed.
    """
    folder = folder.resolve()
    device, point, kind = mount_of(folder, MOUNTS.read_text(encoding="utf-8") if MOUNTS.exists() else "")
    said = [f"folder: {folder} is on {kind}, mounted at {point}, with {_gib(shutil.disk_usage(folder).free)} free"]
    wrong: list[str] = []
    if quota := quota_of(device, point, kind):
        of_files = f", {quota.files:,} of {quota.files_limit:,} files" if quota.files_limit else ""
        of_bytes = f" of {_gib(quota.limit * 1024)}" if quota.limit else ""
        said.append(f"quota: you use {_gib(quota.used * 1024)}{of_bytes}{of_files}")
        little = []
        if quota.limit and (quota.limit - quota.used) * 1024 < space:
            little.append(_gib(space))
        if quota.files_limit and quota.files_limit - quota.files < LEAST_FILES:
            little.append(f"{LEAST_FILES} files")
        wrong += [f"your quota at {point} leaves less than {what}; free some, or use another folder" for what in little]
    return said, wrong


def quota_of(device: str, point: str, kind: str) -> Quota | None:
    """Return the user's quota on a file system; None if no program tells it."""
    lustre = kind == "lustre"
    words = ["lfs", "quota", "-q", "-u", getpass.getuser(), point] if lustre else ["quota", "-w"]
    if shutil.which(words[0]) is None:
        return None
    try:
        text = slurm.client(words).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    # lfs puts a long name on a line of its own.
    for line in [" ".join(text.split())] if lustre else text.splitlines():
        # Name, KiB, soft limit, limit, time left, files, soft limit, limit, time left; no time left: - or nothing.
        name, *figures = line.split() or [""]
        numbers = [int(figure.rstrip("*")) for figure in figures if re.fullmatch(r"\d+\*?", figure)]
        if name in (device, point) and len(numbers) == 6:
            used, soft, hard, files, files_soft, files_hard = numbers
            return Quota(used, hard or soft, files, files_hard or files_soft)
    return None


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
