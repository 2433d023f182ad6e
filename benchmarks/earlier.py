#!/usr/bin/env python3
"""Time `make run`, and with --tests also `make test`, of an earlier commit and of
this one: in turn, in fresh clones.

Installing packages is excluded (the clones use this checkout's .venv).
Committed files only. Ends with the runs whose losses differ: those whose
recipe was changed since.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.clones import VENV, cloned, seconds  # type: ignore[import-not-found]
from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program

EARLIER = "4fc0d46"
"""The last commit whose jobs each imported PyTorch."""


def main() -> None:
    """Clone, time, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=EARLIER, help=f"the earlier one ({EARLIER})")
    parser.add_argument("--rounds", type=int, default=2, help="of each command in each clone (2)")
    parser.add_argument("--tests", action="store_true", help="also `make test`")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/earlier.csv"), help="CSV file to write")
    args = parser.parse_args()
    if not (VENV / "dev").exists():
        raise UserError(".venv is incomplete; make it with: make .venv/dev.")
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for command in ["run", *["test"] * args.tests]:
            for number in range(args.rounds):
                found = {}
                for name, commit in (("earlier", args.commit), ("now", "HEAD")):
                    folder = cloned(Path(place) / f"{command}-{number}-{name}", commit)
                    found[name] = seconds(folder, "make", command)
                rows.append({"command": f"make {command}", **found, "ratio": found["now"] / found["earlier"]})
                print(rows[-1], file=sys.stderr, flush=True)
        different = changed(Path(place) / "run-0-earlier", Path(place) / "run-0-now")
    table = pd.DataFrame(rows)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end\n")
    show(table, args.output, (".0f", ".0f", ".0f", ".2f"))
    print(f"\nTest losses that differ: {', '.join(different) or 'none'}.")


def changed(earlier: Path, now: Path) -> list[str]:
    """Return the runs, strategy x workload, whose test losses differ in any digit."""
    tables = [pd.read_csv(folder / "results/summary.csv", dtype=str) for folder in (earlier, now)]
    both = tables[0].merge(tables[1], on=["strategy", "workload"], suffixes=("", "_now"))
    rows = both[both.test_loss != both.test_loss_now]
    return [f"{row.strategy} x {row.workload}" for row in rows.itertuples()]


if __name__ == "__main__":
    run_program(main)
