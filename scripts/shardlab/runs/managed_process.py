"""A stage's running program, which ends with this process, and with the Snakemake that started it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from shardlab.errors import UserError
from shardlab.runs import commands, forks, signals, slurm
from shardlab.runs.commands import Command
from shardlab.settings.types import Ranks


class Child:
    """Starts a command, forwards requests to stop to it, and reports how it ended."""

    def __init__(self, run: Ranks, what: str, descriptor: int | None = None, folder: Path | None = None) -> None:
        """``descriptor`` is an open lock that lives as long as the command, ``folder`` that of a training."""
        self.site, self.what, self.descriptor = run.site, what, descriptor
        self.request = folder / signals.REQUEST if folder else None
        self.signal, self.kill_signal = signal.SIGTERM, signal.SIGKILL
        if run.site.srun:  # it kills its tasks on SIGTERM, and forwards SIGUSR1 to them
            self.signal, self.kill_signal = signal.SIGUSR1, signal.SIGTERM
        self.ranks_end_together = run.needs_torchrun
        """True if torchrun kills ranks that do not end ``stop_seconds`` after the signal."""
        self.stop_signal = ""
        """Reason of the request to stop; empty without one."""

    def run(self, command: Command, log: Path | None = None, *, again: bool = False) -> int:
        """Run the command, with its output in a file; return its status, and report one that is not 0.

        ``again``: the file has the output of a command before this one.

        Raises:
            UserError: it was requested to stop, and so was the command, which has ended.
        """
        with ExitStack() as stack:
            file = None
            if log:
                log.parent.mkdir(exist_ok=True)
                file = stack.enter_context(log.open("ab" if again else "wb"))
            self.forget()
            self.ended = False
            self.child = self._forked(command.program, file) if command.program else self._started(command.lines, file)
            for number in signals.STOP:
                signal.signal(number, lambda number, _: self.stop(signal.Signals(number).name))
            signals.watch_snakemake(lambda: self.stop(signals.DRIVER_ENDED))
            if self.request:
                threading.Thread(target=self._watch_time_limit, daemon=True).start()
            status = self.child.wait()
            self.ended = True
            self.forget()
        if log is None and self.stop_signal:
            raise UserError(f"{self.what} stopped on request ({self.stop_signal}); run the same command again.")
        if log is None and status:
            print(f"error: {self.what} ended with status {status}; see the error above.", file=sys.stderr)
        return status

    def _started(self, lines: str, file: IO[bytes] | None) -> subprocess.Popen[bytes]:
        """Start a shell with the lines, holding this run's lock."""
        descriptors = () if self.descriptor is None else (self.descriptor,)
        return subprocess.Popen(
            ["bash", "-c", lines],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            pass_fds=descriptors,
            preexec_fn=self._follow_me,
        )

    def _forked(self, program: list[str], file: IO[bytes] | None) -> forks.Fork:
        """Start the program without a shell, in a fork of this process, which has imported most of what it needs."""

        def run() -> None:
            os.setpgid(0, 0)
            with open(os.devnull, "rb") as nothing:  # noqa: PTH123
                os.dup2(nothing.fileno(), 0)
            if file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            for name in self.site.environment_clear:
                os.environ.pop(name, None)
            os.environ.update(commands.environment(self.site))
            forks.run_here(program[1:])

        return forks.Fork(run, self.signal)

    def stop(self, why: str) -> None:
        """Request a training to save and stop; if it does not end in time, end it. Other stages get a signal."""
        if self.stop_signal:
            return
        self.stop_signal = why
        if self.request is None:
            self.child.send_signal(self.signal)
            return
        # Use a file, not a signal, which would also end the program that serves the image's file system.
        self.request.write_text(why, encoding="utf-8")
        if self.ranks_end_together:
            self._later(self.site.stop_seconds, lambda: self.child.send_signal(self.signal))
            self._later(2 * self.site.stop_seconds + 5, self._kill)
        else:  # a signal would only repeat the request
            self._later(self.site.stop_seconds, self._kill)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        late = threading.Timer(seconds, lambda: None if self.ended else act())
        late.daemon = True
        late.start()

    def _kill(self) -> None:
        """End the command, whatever it does, with all processes of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, self.kill_signal)

    def forget(self) -> None:
        if self.request:
            self.request.unlink(missing_ok=True)

    def _watch_time_limit(self) -> None:
        """Stop before the time limit of this process's Slurm job."""
        while (left := slurm.seconds_left()) is not None:
            if left <= self.site.warning:
                self.stop(slurm.TIME_LIMIT)
                return
            time.sleep(left - self.site.warning)

    def _follow_me(self) -> None:
        os.setpgid(0, 0)  # this process forwards what a terminal sends to the whole group
        signals.die_with_parent(self.signal)
