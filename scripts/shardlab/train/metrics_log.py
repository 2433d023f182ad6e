"""metrics.jsonl for programs, TensorBoard event files if requested, and one line per step for people.

Only rank 0 writes.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import torch

from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.records.metrics import now, read
from shardlab.runtime.batches import Step
from shardlab.runtime.device import peak_memory
from shardlab.runtime.distributed import World

EVENTS = "tensorboard"
"""Folder of the event files, next to metrics.jsonl."""
SCALARS = {"train": {"loss", "grad_norm", "learning_rate", "seconds"}, "validation": {"loss"}}
"""Values of each kind of record that TensorBoard shows."""


class MetricsLog:
    """Appends one JSON object per line; the file can be read during the run."""

    def __init__(self, path: Path | None, start: int = 0, *, tensorboard: bool = False) -> None:
        """``path`` is None on ranks that do not write; records of steps from ``start`` on are dropped, to be written
        again.
        """
        self._file: TextIO | None = None
        self._events: Any = None
        self._steps = 0
        self._devices: list[torch.device] = []
        self.flops_per_sample = self.peak_flops = 0.0
        """Floating-point operations per sample, and the peak FLOP/s of all devices together; 0: unknown."""
        if path:
            records = read(path) if start else []
            kept = [record for record in records if record["kind"] == "attempt" or record["step"] < start]
            write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
            self._file = path.open("a", encoding="utf-8", buffering=1)
        if path and start == 0:
            shutil.rmtree(path.parent / EVENTS, ignore_errors=True)
        if path and tensorboard:
            from tensorboardX import SummaryWriter

            # Hide the events of steps that are taken again.
            self._events = SummaryWriter(str(path.parent / EVENTS), purge_step=start, flush_secs=10)

    def attempt(self, start: int, steps: int, resume: Path | None, world: World, origin: Mapping[str, Any]) -> None:
        """Log the attempt: its first step, the number of steps and the hosts; a collective."""
        self._steps, self._devices = steps, world.devices
        hosts = world.gather(os.uname().nodename)
        place = {"number": origin.get("attempt"), "slurm_job_id": origin.get("slurm_job_id"), "hosts": hosts}
        self.write("attempt", step=start, steps=steps, time=now(), checkpoint=str(resume) if resume else None, **place)
        self._say(
            f"attempt    from step {start} of {steps}, {resume or 'no checkpoint'}, on {', '.join(sorted({*hosts}))}"
        )

    def step(self, step: Step, loss: float, norm: float, seconds: float, **experts: Any) -> None:
        """Write and print a training step, which took ``seconds``; non-finite values become null.

        ``experts``: figures of experts to write, if the model has them (see StepMetrics).
        """
        where = {"step": step.number, "epoch": step.epoch, "samples": step.samples, "targets": step.targets}
        finite = {"loss": loss, "grad_norm": norm}
        values = {key: value if math.isfinite(value) else None for key, value in finite.items()}
        self.write("train", **where, **values, learning_rate=step.learning_rate, seconds=seconds, **experts)
        if self._file:
            used = self.flops_per_sample * step.samples / seconds / self.peak_flops if self.peak_flops else None
            self._say(_line(step, self._steps, loss, norm, seconds, used, _memory(self._devices)))

    def validation(self, step: Step, loss: float) -> None:
        self.write("validation", step=step.number, epoch=step.epoch, loss=loss)
        self._say(f"validation loss {loss:.6f} after epoch {step.epoch}")

    def stopped(self, step: int, why: str) -> None:
        """Write and print why the training ended early after a step."""
        self.write("stopped", step=step, why=why)
        self._say(f"stopped    after step {step}: {why}")

    def write(self, kind: str, **values: Any) -> None:
        """Write ``values`` as a record of that kind.

        Raises:
            UserError: the disk is full.
        """
        if not self._file:
            return
        try:
            self._file.write(json.dumps({"kind": kind, **values}) + "\n")
            self._draw(kind, values)
        except OSError as error:
            raise UserError(
                f"{self._file.name} could not be written: {error.strerror}; free space and run the command again."
            ) from None

    def _draw(self, kind: str, values: dict[str, Any]) -> None:
        """Write the record's numbers to TensorBoard."""
        for name in values.keys() & SCALARS.get(kind, set()) if self._events else ():
            if values[name] is not None:
                self._events.add_scalar(f"{kind}/{name}", values[name], values["step"])

    def close(self) -> None:
        """Close the event files, which are written a few seconds late."""
        if self._events:
            self._events.close()

    def _say(self, line: str) -> None:
        if self._file:
            print(line, flush=True)


def _line(step: Step, steps: int, loss: float, norm: float, seconds: float, used: float | None, memory: str) -> str:
    """Format a training step in aligned columns; ``used`` is the MFU. The targets of language models are tokens."""
    width = len(str(steps))
    speed = f"{_short(step.samples / seconds):>9} samples/s"
    if step.targets != step.samples:
        speed += f"  {_short(step.targets / seconds):>9} targets/s"
    cells = [f"epoch {step.epoch:>3}", f"grad norm {norm:9.4g}", f"lr {step.learning_rate:8.2e}", speed, memory]
    cells += [] if used is None else [f"MFU {used:6.1%}"]
    return f"step {step.number + 1:>{width}}/{steps}  loss {loss:10.6f}  " + "  ".join(cells)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _memory(devices: list[torch.device]) -> str:
    """Format the peak memory so far: of this rank's tensors on a GPU, or of its process on a CPU."""
    return f"{peak_memory(devices) / 2**20:8.0f} MiB"
