"""Results of the fault tests for the table in docs/evidence.md, written by ``pytest --record-faults``."""

import json
from datetime import datetime
from pathlib import Path

FILE = Path(__file__).parents[1] / "faults.json"
SEEN = []


def cost(attempts, number=0):
    """Cost of a fault during an attempt: repeated steps, and seconds from its end to the next new step.

    ``attempts``: the run's (records.reports.Attempt, as dictionaries). (0, 0) if the fault came after the last step.
    """
    struck, after = attempts[number], next((each for each in attempts[number + 1 :] if each["first_step_at"]), None)
    if after is None:
        return 0, 0
    ended, ready = (datetime.fromisoformat(time) for time in (struck["ended"], after["first_step_at"]))
    return max(0, (struck["reached"] or 0) - after["from_step"]), int((ready - ended).total_seconds())


def survived(fault, injected, lost, seconds, *, layer, equal="bitwise"):
    """Record a fault that a run survived, and its cost."""
    row = {"fault": fault, "injected": injected, "layer": layer, "lost_steps": lost, "seconds": seconds}
    SEEN.append(row | {"equal": equal})


def write():
    """Write the recorded faults, each once, and keep those of other test layers."""
    known = json.loads(FILE.read_text()) if FILE.exists() else []
    seen = {each["fault"] for each in SEEN}
    rows = [each for each in known if each["fault"] not in seen] + SEEN
    rows.sort(key=lambda row: (row["layer"], row["fault"]))
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
