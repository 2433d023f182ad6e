"""Signals and parent processes: no process of a run is left behind, and requests to stop do not kill it."""

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals that request a training to save and stop: the end of a job, Ctrl-C, a closed terminal, Slurm's warning."""
WARNINGS = STOP[1:]
"""Signals that a process without anything to save only records. SIGTERM ends it at once: a rank that waits for one that
died during start-up would not react to signals, and torchrun would wait 30 s.
"""
STOPPED = 3
"""Exit status of a rank that saved and stopped on request."""
REQUEST = ".stop"
"""File in a run's folder that requests its ranks to save and stop, with the reason."""
DRIVER_ENDED = "Snakemake ended"
"""Reason to stop a training whose Snakemake has ended."""
TORCHRUN = "SHARDLAB_TORCHRUN"
"""Environment variable with the process id of the torchrun that started a rank."""
DRIVER = "SHARDLAB_DRIVER"
"""Environment variable that names the Snakemake process whose job this is: process id, start time and boot."""
_asked: list[int] = []


def listen(numbers: Iterable[signal.Signals] = STOP) -> None:
    """Record these requests to stop from now on, instead of dying from them."""
    for number in numbers:
        signal.signal(number, lambda number, _: _asked.append(number))


def obey(numbers: Iterable[signal.Signals] = STOP) -> None:
    """Restore the default action of these signals, replacing handlers inherited through a fork or set before."""
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def name(what: str) -> None:
    """Set the process name for `ps -o comm` and `top` (Linux: prctl(2), PR_SET_NAME); a fork has its parent's."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(15, what.encode())


class Requests:
    """Requests to stop: signals to this process, or a file that `shardlab launch` writes."""

    def __init__(self, path: Path | None) -> None:
        """``path`` is that of the file; None for ranks that need not check it, since rank 0 informs them."""
        self.path, self._next = path, 0.0

    def requested(self) -> str | None:
        """Return the reason to stop; None without a request. Checks the file once a second."""
        if _asked:
            return signal.Signals(_asked[0]).name
        if self.path is None or time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + 1
        try:
            return self.path.read_text(encoding="utf-8")
        except OSError:
            return None


def die_with_parent(number: int, parent: int | None = None) -> None:
    """Make the system send this process a signal when its parent ends (Linux: prctl(2), PR_SET_PDEATHSIG).

    ``parent`` is its process id, if known: one that ended before this call is no longer the parent.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = parent or os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, number, 0, 0, 0)
    if os.getppid() != parent:  # the parent has just ended
        os.kill(os.getpid(), number)


def announce_driver() -> None:
    """Name this process, which runs Snakemake, to the jobs that it will start, however it was called."""
    if sys.platform.startswith("linux"):
        os.environ[DRIVER] = f"{os.getpid()} {_started(os.getpid())} {_boot()}"


def open_driver() -> int | None:
    """Return a descriptor that is readable once the Snakemake of this job has ended; None if there is none to follow.

    Raises:
        ProcessLookupError: it has already ended; another process may have its number by now.
    """
    try:
        pid, started, boot = os.environ.get(DRIVER, "").split()
        if boot != _boot():  # of another machine, or namespace of processes
            return None
        descriptor = os.pidfd_open(int(pid))
    except ProcessLookupError:
        raise
    except (ValueError, OSError):
        return None
    if _started(int(pid)) != started:
        os.close(descriptor)
        raise ProcessLookupError
    return descriptor


def driver_ended() -> bool | None:
    """Return whether the Snakemake of this job has ended; None if there is none to follow."""
    try:
        descriptor = open_driver()
    except ProcessLookupError:
        return True
    if descriptor is None:
        return None
    ended = bool(select.select([descriptor], [], [], 0)[0])
    os.close(descriptor)
    return ended


def watch_snakemake(ended: Callable[[], None]) -> None:
    """Call ``ended`` once the Snakemake of this job has ended; never if there is none to follow."""
    try:
        descriptor = open_driver()
    except ProcessLookupError:
        ended()
        return
    if descriptor is None:
        return

    def wait() -> None:
        select.select([descriptor], [], [])
        ended()

    threading.Thread(target=wait, daemon=True).start()


def _started(pid: int) -> str:
    """Return when a process started, in clock ticks since the machine did (proc(5)); empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _boot() -> str:
    """Return what differs between machines, their starts, and namespaces of process ids."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + str(Path("/proc/self/ns/pid").readlink())
