"""What metrics.jsonl says, for programs."""

import json
import time
from pathlib import Path
from typing import Any

NAME = "metrics.jsonl"


def now() -> str:
    """The time, as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a run, whenever they were written; lines that a kill or a full disk left half are none."""
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
