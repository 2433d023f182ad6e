"""metrics.jsonl for programs and one line a step for people; only rank 0 writes."""

import json
from pathlib import Path
from typing import Any, TextIO


class MetricsLog:
    """Appends one JSON object a line; the file is there to read while the run goes on."""

    def __init__(self, path: Path | None) -> None:
        """``path`` is None on ranks that do not write."""
        self.records: list[dict[str, Any]] = []
        self._file: TextIO | None = None
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", buffering=1)

    def write(self, kind: str, **values: Any) -> None:
        """Keep ``values`` as a record of that kind (train or validation), write and print them."""
        self.records.append({"kind": kind, **values})
        if not self._file:
            return
        self._file.write(json.dumps(self.records[-1]) + "\n")
        shown = (
            f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        print(f"{kind:<10} " + "  ".join(shown), flush=True)
