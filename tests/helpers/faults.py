"""What the fault tests saw, for the table in docs/reliability.md: ``pytest --record-faults`` writes it."""

import json
from datetime import datetime
from pathlib import Path

FILE = Path(__file__).parents[1] / "faults.json"
SEEN = []


def cost(attempts, number=0):
    """What it cost that an attempt was struck: steps that were taken again, and seconds until there were new ones.

    Those are counted from its end, or from the start of the next one where it could not note its end. ``attempts`` are
    the run's (report.records.Attempt, as dictionaries); some may have come to no step. Nothing, where it was struck
    behind its last step.
    """
    struck, after = attempts[number], next((each for each in attempts[number + 1 :] if each["first_step_at"]), None)
    if after is None:
        return 0, 0
    ended, ready = (datetime.fromisoformat(time) for time in (struck["ended"], after["first_step_at"]))
    return max(0, (struck["reached"] or 0) - after["from_step"]), int((ready - ended).total_seconds())


def survived(fault, injected, lost, seconds, *, layer, equal="bitwise"):
    """Note a fault that a run survived, and what it cost."""
    row = {"fault": fault, "injected": injected, "layer": layer, "lost_steps": lost, "seconds": seconds}
    SEEN.append(row | {"equal": equal})


def write():
    """Write what was seen, each fault once, beside what other layers saw before."""
    known = json.loads(FILE.read_text()) if FILE.exists() else []
    seen = {each["fault"] for each in SEEN}
    rows = [each for each in known if each["fault"] not in seen] + SEEN
    rows.sort(key=lambda row: (row["layer"], row["fault"]))
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
