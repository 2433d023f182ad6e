"""Fresh clones of this repository, in which make and Snakemake are timed."""

import os
import subprocess
import time
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import ROOT

VENV = ROOT / ".venv"


def cloned(folder: Path, commit: str = "HEAD") -> Path:
    """Clone a commit with this checkout's packages, which make then considers installed."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "checkout", "--quiet", commit], cwd=folder, check=True)
    for path in (folder / "envs").iterdir():
        os.utime(path, (0, 0))
    (folder / ".venv").symlink_to(VENV)
    return folder


def seconds(folder: Path, *command: str) -> float:
    """Return the wall time of a command.

    Raises:
        UserError: it failed.
    """
    begin = time.perf_counter()
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as file:
        status = subprocess.run(command, cwd=folder, stdout=file, stderr=file).returncode
    if status:
        raise UserError(f"{' '.join(command)} in {folder} failed: {log.read_text(errors='replace')[-1000:]}")
    return time.perf_counter() - begin
