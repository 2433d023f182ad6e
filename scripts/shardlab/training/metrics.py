"""metrics.jsonl for programs and one line per step for people; only rank 0 writes."""

import json
from pathlib import Path
from typing import Any

from shardlab.files import write_text
from shardlab.training.batches import Step


class MetricsLog:
    """Appends one JSON object per line; the file is there to read while the run goes on."""

    def __init__(self, path: Path | None, start: int = 0) -> None:
        """``path`` is None on ranks that do not write; records of steps from ``start`` on will be written again."""
        self._file = None
        if path:
            kept = [line for line in _lines(path) if json.loads(line)["step"] < start]
            write_text(path, "".join(kept))
            self._file = path.open("a", encoding="utf-8", buffering=1)

    def step(self, step: Step, loss: float, norm: float, seconds: float) -> None:
        """Write and print a training step, which took so many seconds."""
        where = {"step": step.number, "epoch": step.epoch, "samples": step.samples, "targets": step.targets}
        values = {"loss": loss, "grad_norm": norm, "learning_rate": step.learning_rate, "seconds": seconds}
        self.write("train", **where, **values)

    def write(self, kind: str, **values: Any) -> None:
        """Write and print ``values`` as a record of that kind (train or validation)."""
        if not self._file:
            return
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        shown = (
            f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        print(f"{kind:<10} " + "  ".join(shown), flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a run, whenever they were written."""
    return [json.loads(line) for line in _lines(path)]


def _lines(path: Path) -> list[str]:
    """Whole lines of the file; a process that was killed may leave half of one."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("}\n")]
