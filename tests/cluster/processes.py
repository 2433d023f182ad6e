"""Programs that stay, each known by its process id and the moment it started; and short commands."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HOME = Path("/var/lib/shardlab-cluster")
"""All that the cluster keeps: settings, state, logs, and one file for each program that stays."""


def daemon(name: str, *command: str, user: str | None = None, **environment: str) -> None:
    """Start a program that stays, with its output in the log folder and its process id in the run folder."""
    with (HOME / "log" / f"{name}.out").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            user=user,
            group=user,
            extra_groups=[] if user else None,
            env=os.environ | environment,
        )
    (HOME / "run" / f"{name}.ours").write_text(f"{process.pid} {birth(process.pid)}")


def stop_daemon(name: str) -> None:
    """End a program that ``daemon`` started."""
    pid, born = (HOME / "run" / f"{name}.ours").read_text().split()
    stop(int(pid), born)


def birth(pid: int) -> str | None:
    """When a process started, in ticks since boot: with its number, its identity. None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]


def stop(pid: int, born: str | None) -> None:
    """Ask a process to end, then make it; a process that only got its number later is left alone."""
    for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
        end = time.monotonic() + patience
        if born and birth(pid) == born:
            os.kill(pid, number)
        while born and birth(pid) == born and time.monotonic() < end:
            time.sleep(0.05)


def run(*command: str, **options: object) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, **options)


def output(*command: str) -> str:
    """Standard output of a command, empty where it fails."""
    return subprocess.run(command, text=True, capture_output=True).stdout


def quiet(*command: str) -> bool:
    """Whether a command succeeds."""
    return subprocess.run(command, capture_output=True).returncode == 0


def wait(what: str, ready: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is ready.

    Raises:
        SystemExit: it was not within ``seconds``; the logs are printed.
    """
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            for log in sorted((HOME / "log").glob("*")):
                print(f"--- {log}\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
            sys.exit(f"error: {what} did not come up within {seconds:.0f} s; the logs stand above.")
        time.sleep(0.1)
