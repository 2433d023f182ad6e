"""Reader of metrics.jsonl."""

import json
import time
from pathlib import Path
from typing import Any

NAME = "metrics.jsonl"


def now() -> str:
    """Return the current time in UTC, as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a run in order; lines left incomplete by a kill or a full disk are skipped."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and {"kind", "step"} <= record.keys():
            records.append(record)
    return records
