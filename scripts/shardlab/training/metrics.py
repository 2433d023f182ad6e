"""metrics.jsonl for programs and one line per step for people; only rank 0 writes."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.report.metrics import now, read
from shardlab.training.batches import Step
from shardlab.training.distributed import World


class MetricsLog:
    """Appends one JSON object per line; the file is there to read while the run goes on."""

    def __init__(self, path: Path | None, start: int = 0) -> None:
        """``path`` is None on ranks that do not write; records of steps from ``start`` on will be written again."""
        self._file = None
        if path:
            records = read(path) if start else []
            kept = [record for record in records if record["kind"] == "attempt" or record["step"] < start]
            write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
            self._file = path.open("a", encoding="utf-8", buffering=1)

    def attempt(self, start: int, steps: int, resume: Path | None, world: World, origin: Mapping[str, Any]) -> None:
        """Write where this attempt begins, of how many steps, and where it runs; a collective."""
        hosts = world.gather(os.uname().nodename)
        place = {"number": origin.get("attempt"), "slurm_job_id": origin.get("slurm_job_id"), "hosts": hosts}
        self.write("attempt", step=start, steps=steps, time=now(), checkpoint=str(resume) if resume else None, **place)

    def step(self, step: Step, loss: float, norm: float, seconds: float) -> None:
        """Write and print a training step, which took so many seconds; what is not finite is null."""
        where = {"step": step.number, "epoch": step.epoch, "samples": step.samples, "targets": step.targets}
        finite = {"loss": loss, "grad_norm": norm}
        values = {key: value if math.isfinite(value) else None for key, value in finite.items()}
        self.write("train", **where, **values, learning_rate=step.learning_rate, seconds=seconds)

    def write(self, kind: str, **values: Any) -> None:
        """Write and print ``values`` as a record of that kind (train or validation)."""
        if not self._file:
            return
        try:
            self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        except OSError as error:
            raise UserError(
                f"{self._file.name} could not be written: {error.strerror}; make room and call again."
            ) from None
        shown = (
            f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        print(f"{kind:<10} " + "  ".join(shown), flush=True)
