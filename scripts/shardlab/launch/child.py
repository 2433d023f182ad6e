"""The shell lines of a stage, under way: they end with this process, and with the Snakemake that asked for them."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shardlab.errors import UserError
from shardlab.launch import processes, slurm
from shardlab.settings.types import Run


class Child:
    """Starts the lines, hands requests to stop on to them, and says how they ended."""

    def __init__(self, run: Run, what: str, descriptor: int | None = None, folder: Path | None = None) -> None:
        """``descriptor`` is an open lock that lives as long as the lines do; ``folder`` that of a training's files."""
        self.site, self.what, self.descriptor = run.site, what, descriptor
        self.request = folder / processes.REQUEST if folder else None
        # srun kills its tasks on SIGTERM, and hands SIGUSR1 on to them.
        self.signal = signal.SIGUSR1 if run.site.srun else signal.SIGTERM
        self.told = ""
        """Why it was told to stop; empty if it was not."""

    def run(self, lines: str, log: Path | None = None) -> int:
        """Run the lines, with their output in a file; returns their status, and says so if it is not 0.

        Raises:
            UserError: it was told to end; what it started was told, too, and has ended.
        """
        options: dict[str, Any] = {"pass_fds": (self.descriptor,)} if self.descriptor is not None else {}
        with ExitStack() as stack:
            if log:
                log.parent.mkdir(exist_ok=True)
                file = stack.enter_context(log.open("wb"))
                options |= {"stdout": file, "stderr": file}
            self.forget()
            self.child = subprocess.Popen(
                ["bash", "-c", lines], stdin=subprocess.DEVNULL, preexec_fn=self._follow_me, **options
            )
            for number in processes.STOP:
                signal.signal(number, lambda number, _: self.stop(signal.Signals(number).name))
            processes.watch_snakemake(lambda: self.stop("Snakemake ended"))
            if self.request:
                threading.Thread(target=self._mind_the_time, daemon=True).start()
            status = self.child.wait()
            self.forget()
        if log is None and self.told:
            raise UserError(f"{self.what} was told to stop ({self.told}); the same call makes it again.")
        if log is None and status:
            print(f"error: {self.what} ended with status {status}; see the error above.", file=sys.stderr)
        return status

    def stop(self, why: str) -> None:
        """Ask a training to save and end; what has not ended in time, and any other stage, gets a signal."""
        if self.told:
            return
        self.told = why
        if self.request is None:
            self.child.send_signal(self.signal)
            return
        # By a file, not by a signal: that would also end the program that holds the image's file system.
        self.request.write_text(why, encoding="utf-8")
        late = threading.Timer(self.site.stop_seconds, lambda: self.child.send_signal(self.signal))
        late.daemon = True
        late.start()

    def forget(self) -> None:
        """Nobody asks any more."""
        if self.request:
            self.request.unlink(missing_ok=True)

    def _mind_the_time(self) -> None:
        """Stop before the time limit of this process's Slurm job."""
        while (left := slurm.seconds_left()) is not None:
            if left <= self.site.warning:
                self.stop(slurm.TIME_LIMIT)
                return
            time.sleep(left - self.site.warning)

    def _follow_me(self) -> None:
        os.setpgid(0, 0)  # what a terminal sends to all, this process hands on
        processes.die_with_parent(self.signal)
