"""What the fault tests saw, for the table in docs/reliability.md: ``pytest --record-faults`` writes it."""

import json
from pathlib import Path

FILE = Path(__file__).parents[1] / "faults.json"
SEEN = []


def survived(fault, injected, attempts, *, layer, equal="to the bit"):
    """Note a fault that a run survived.

    ``attempts`` are the run's (report.records.Attempt, as dictionaries) from the one that was struck on.
    """
    struck, *later = attempts
    after = later[0] if later else None
    lost = max(0, (struck["reached"] or 0) - (after["from_step"] or 0)) if after else 0
    SEEN.append({"fault": fault, "injected": injected, "layer": layer, "lost_steps": lost, "equal": equal})


def write():
    """Write what was seen, each fault once, beside what other layers saw before."""
    known = json.loads(FILE.read_text()) if FILE.exists() else []
    seen = {each["fault"] for each in SEEN}
    rows = [each for each in known if each["fault"] not in seen] + SEEN
    FILE.write_text(json.dumps(sorted(rows, key=lambda row: (row["layer"], row["fault"])), indent=1) + "\n")
