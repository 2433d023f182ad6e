"""Signals and parent processes: no process of a run is left behind, and requests to stop do not kill it."""

import ctypes
import os
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
REQUEST = ".stop"
"""File in a run's folder that requests its ranks to save and stop, with the reason."""
DRIVER_ENDED = "Snakemake ended"
"""Reason to stop a training whose Snakemake has ended."""
TORCHRUN = "SHARDLAB_TORCHRUN"
"""Environment variable with the process id of the torchrun that started a rank."""
driver: int | None = None
"""Process id of the Snakemake that this process works for: set when a job begins (job.py)."""
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
    """Requests to stop: signals to this process, or a file that launch.py writes."""

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


def watch_snakemake(ended: Callable[[], None]) -> None:
    """Call ``ended`` once the Snakemake that this process works for has ended; never if there is none."""
    if driver is None:
        return
    try:
        descriptor = os.pidfd_open(driver)
    except ProcessLookupError:  # it has just ended
        ended()
        return
    except OSError:
        return

    def wait() -> None:
        import select

        select.select([descriptor], [], [])
        ended()

    threading.Thread(target=wait, daemon=True).start()


def snakemake_of(pid: int) -> int | None:
    """Return the nearest ancestor of a process that is Snakemake."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except (OSError, IndexError):
            return None
        if any(Path(word).name == "snakemake" for word in words[:3]) or words[1:3] == ["-m", "snakemake"]:
            return pid
    return None
