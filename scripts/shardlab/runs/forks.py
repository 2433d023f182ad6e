"""Forks of this process, which has imported what programs need."""

import os
import signal
import sys
from collections.abc import Callable

from shardlab.runs import signals

FORWARDED = (*signals.STOP, signal.SIGQUIT)
"""Signals that are forwarded to a fork."""
served: dict[str, str] | None = None
"""In a fork of a server: the environment with which its modules were imported."""
run_verb: Callable[[list[str]], None] | None = None
"""In a server and its forks: runs a verb of the command, which knows this room and is not known here."""


def is_fork(environment: dict[str, str]) -> bool:
    """True if this process was forked from a server that imported its modules with these environment variables."""
    return served is not None and environment.items() <= served.items()


class Fork:
    """A forked process, with the methods of subprocess.Popen that a launcher needs."""

    def __init__(self, target: Callable[[], None], die_by: int = signal.SIGKILL) -> None:
        """Call ``target`` in a fork, which gets the signal ``die_by`` when this process ends."""
        import multiprocessing

        def run() -> None:
            signals.obey(FORWARDED)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signals.die_with_parent(die_by, parent)
            target()

        parent = os.getpid()
        self._process = multiprocessing.get_context("fork").Process(target=run)
        # A signal that comes before the fork obeys it waits, whatever this process does at it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.pid = int(self._process.pid or 0)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the fork has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end; return the status, or the negative number of a signal."""
        self._process.join()
        code = self._process.exitcode
        return 1 if code is None else code


def run_here(words: list[str]) -> None:
    """Run a verb of the command, with its arguments, as a new Python process would."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty() or stream is sys.stderr)  # type: ignore[union-attr]
    signals.name(words[0])
    assert run_verb
    run_verb(words)
