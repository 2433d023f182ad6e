#!/usr/bin/env python3
"""Ask spmd_types and TrainCheck about published faults, in small programs.

The programs are benchmarks/tools/spmd_programs.py, for two ranks; each is also
trained on one, to see that the fault is one. Writes a table of docs/faults.md.
Runs in the environment of the peers: make tools.
"""

import argparse
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from shardlab.docs_generator.markers import fill
from shardlab.errors import UserError, run_program
from shardlab.files import ROOT, write_text

PAGE = ROOT / "docs/faults.md"
HEAD = ["fault", "published in", "parameters differ by", "spmd_types, local", "spmd_types, global", "TrainCheck"]


def main() -> None:
    """Ask, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help="words of the faults' names: only these, and no page")
    parser.add_argument("--output", type=Path, default=PAGE, help="page with the table's markers")
    args = parser.parse_args()
    from tools.asked import FAULTS, check_types, compare, in_fork, trace  # type: ignore[import-not-found]

    names = [name for name in FAULTS if not args.faults or any(word in name for word in args.faults)]
    if not names:
        raise UserError(f"no fault has a name with {args.faults[0]}; names are: {'; '.join(FAULTS)}.")
    with tempfile.TemporaryDirectory() as folder:
        distances = compare(names, Path(folder))
        types = [in_fork(check_types, names, local) for local in (True, False)]
        traces, alarms = trace(names, Path(folder))
    rows = [[name, FAULTS[name].source, *(said[name] for said in (distances, *types, traces))] for name in names]
    if not args.faults:
        write_text(args.output, fill(args.output, {"tools": block(rows, alarms)}))


def block(rows: list[list[str]], alarms: str) -> str:
    """Return counts, versions and the table."""
    counts = [sum(bool(row[HEAD.index(name)]) for row in rows) for name in HEAD[-3:]]
    counted = "; ".join(f"{name}: {count}" for name, count in zip(HEAD[-3:], counts, strict=True))
    ordering = sum(bool(re.fullmatch(r"\d+ of order", row[-1])) for row in rows)
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in ("spmd-types", "traincheck", "torch"))
    cells = [HEAD, ["---"] * len(HEAD), *([cell.replace("|", "/") or "-" for cell in row] for row in rows)]
    table = [f"| {' | '.join(row)} |" for row in cells]
    said = f"Seen of {len(rows)} faults: {counted}, {ordering} of them by the order of calls alone."
    alarmed = f"Invariants of TrainCheck broken without a fault: {alarms}. Versions: {versions}."
    return "\n".join([said, alarmed, "", *table])


if __name__ == "__main__":
    run_program(main)
