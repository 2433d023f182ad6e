"""One rank of a script: starts it, forwards requests to stop, checks its lines, and measures it from outside."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from shardlab.data import store
from shardlab.data.order import BatchOrder
from shardlab.errors import UserError
from shardlab.files import ROOT, write_json, write_text
from shardlab.records import metrics
from shardlab.records.script_lines import Lines
from shardlab.runs import gpus, script_place, signals, slurm
from shardlab.settings.types import Run

POLL = 0.02
"""Seconds between two looks at the script's lines: the resolution of its steps' times."""
SELDOM = 0.5
"""Seconds between two looks at its memory and at the file that requests it to stop."""
EXCEPTION = re.compile(r"(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*)")
"""A line of standard error that names a Python exception."""


class Script:
    """The process of a script."""

    def __init__(self, run: Run, options: list[str]) -> None:
        """Start it with these options; it ends with this process."""
        path = ROOT / str(run.script)
        words = [sys.executable, "-u"] * (path.suffix == ".py") + [str(path), *options]
        parent = os.getpid()
        self.run = run
        self.peak_bytes: int | None = None
        """Peak of its resident memory so far."""
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signals.die_with_parent(signal.SIGKILL, parent),
        )
        self._last: deque[str] = deque(maxlen=20)
        self._reader = threading.Thread(target=self._forward, daemon=True)
        self._reader.start()

    def _forward(self) -> None:
        """Write its standard error to this process's, and keep its last lines."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
            self._last.append(line.decode(errors="replace").rstrip())

    def measure(self) -> None:
        """Note its peak memory (Linux: VmHWM, of its program alone)."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return
        if match := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
            self.peak_bytes = 1024 * int(match[1])

    def request(self) -> None:
        """Ask it to save and stop."""
        if self.process.poll() is None:
            self.process.terminate()

    def end(self) -> None:
        """End it, as it does something wrong."""
        self.request()
        try:
            self.process.wait(self.run.site.stop_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def failure(self, rank: int) -> str:
        """Return the sentence that says how it failed."""
        self._reader.join(timeout=1)
        who = f"rank {rank} of {self.run.script}" if self.run.world_size > 1 else str(self.run.script)
        status = self.process.returncode
        if status < 0:
            return f"{who} was killed by signal {-status} ({signal.strsignal(-status)})."
        named = [match[1] for line in self._last if (match := EXCEPTION.fullmatch(line))]
        return f"{who} failed: {named[-1]}" if named else f"{who} ended with status {status}; its output is above."


class Recorder:
    """Turns a script's lines into the run's metrics.jsonl while they are written."""

    def __init__(self, run: Run, data: Path, folder: Path, attempt: int) -> None:
        """``folder`` is the run's; of an ``attempt`` before this one, the steps that are not taken again are kept."""
        recipe = run.recipe
        self.order = BatchOrder(store.samples_in(data, "train"), recipe.global_batch_size, run.seed)
        self.count = recipe.steps(self.order.steps_per_epoch)
        self.path, self.attempt = folder / metrics.NAME, attempt
        self.kept = metrics.read(self.path) if attempt > 1 else []
        earlier = sum(record["kind"] == "train" for record in self.kept)
        self.lines = Lines(folder / script_place.OUTPUT / metrics.NAME, earlier, self.count)
        self.grew: float | None = None
        """When lines were last added."""

    def update(self, *, ended: bool = False) -> bool:
        """Write what the script added; return whether it added anything.

        The time between two additions is that of the steps in between: without a second addition there is none.

        Raises:
            UserError: see ``Lines.new``.
        """
        begins = self.lines.first is None
        lines = self.lines.new(ended=ended)
        if not lines:
            return False
        if begins:
            self._begin(lines[0].step)
        now = time.monotonic()
        seconds = None if self.grew is None else (now - self.grew) / len(lines)
        self.grew = now
        self._write(
            {
                "kind": "train",
                "step": line.step,
                "epoch": line.step // self.order.steps_per_epoch,
                "samples": len(self.order.batch(line.step)),
                "loss": line.loss,
                "grad_norm": line.grad_norm,
                "seconds": seconds,
            }
            for line in lines
        )
        return True

    def _begin(self, first: int) -> None:
        kept = [record for record in self.kept if record["kind"] == "attempt" or record["step"] < first]
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        steps = {"step": first, "steps": self.count, "time": metrics.now(), "checkpoint": None}
        place = {"number": self.attempt, "slurm_job_id": slurm.job_id(), "hosts": [os.uname().nodename]}
        self._write([{"kind": "attempt", **steps, **place}])

    def finish(self) -> None:
        """Check that all steps are there.

        Raises:
            UserError: they are not.
        """
        self.lines.finish()
        if self.lines.first is None:  # an attempt that had only the weights to write
            self._begin(self.count)

    def stopped(self, why: str) -> None:
        """Write that the script ended on request."""
        if self.lines.first is not None:
            self._write([{"kind": "stopped", "step": self.lines.next - 1, "why": why}])

    def _write(self, records: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))


def supervise(run: Run, rank: int, options: list[str], folder: Path, recorder: Recorder | None) -> int:
    """Run the script to its end, and return 0, or ``signals.STOPPED``.

    ``recorder`` is that of rank 0.

    Raises:
        UserError: it failed, or what it writes is not what it has to write.
    """
    script = Script(run, options)
    asked = signalled = ""
    sent = signals.Requests(None)
    try:
        heard = seldom = time.monotonic()
        while script.process.poll() is None:
            time.sleep(POLL)
            now = time.monotonic()
            if recorder and recorder.update():
                heard = now
            if now > seldom:
                seldom = now + SELDOM
                script.measure()
                if not asked and (asked := _request(folder)):
                    script.request()
            if recorder and not asked and now - heard > run.site.hang_seconds:
                raise UserError(
                    f"{run.script} wrote no line to {recorder.lines.path} for {run.site.hang_seconds} s (site key "
                    "hang_seconds): it hangs, or keeps its lines in a buffer; flush each one."
                )
            if not signalled and (signalled := sent.requested() or ""):
                script.request()
        if recorder:
            recorder.update(ended=True)
    except UserError:
        script.end()
        raise
    status = script.process.returncode
    written = (folder / script_place.OUTPUT / script_place.WEIGHTS).is_file()
    if (asked or signalled) and (status or not written):
        if recorder and asked:
            recorder.stopped(asked)
        return signals.STOPPED
    if status:
        raise UserError(script.failure(rank))
    if recorder:
        recorder.finish()
    measured = {
        "host": os.uname().nodename,
        "cpus": gpus.cores(),
        "peak_memory_bytes": script.peak_bytes,
        "wall_seconds": time.monotonic() - script.began,
    }
    write_json(folder / script_place.MEASURED / f"{rank}.json", measured)
    return 0


def _request(folder: Path) -> str:
    """Return the reason for which the run is requested to stop; empty without a request."""
    try:
        return (folder / signals.REQUEST).read_text(encoding="utf-8")
    except OSError:
        return ""
