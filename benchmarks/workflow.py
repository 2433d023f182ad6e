#!/usr/bin/env python3
"""Time what a user waits for: `make run` in a fresh clone, the second `make run`, and `snakemake -n all`.

The packages are taken as installed (the clone uses this checkout's .venv). Committed files only.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT


def main() -> None:
    """Clone, time, print one line per figure and the time of each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="runs of the short commands; their median counts")
    args = parser.parse_args()
    venv = ROOT / ".venv"
    if not venv.exists():
        raise UserError(".venv is missing; make it with: make .venv/run.")
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "shardlab"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        (clone / ".venv").symlink_to(venv)
        seconds(clone, "make", ".venv/run")
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
        print(f"make run             {seconds(clone, 'make', 'run'):7.1f} s")
        for words in (["make", "run"], [f"{venv}/bin/snakemake", "-n", "all"]):
            times = [seconds(clone, *words) for _ in range(args.repeats)]
            label = "make run, second" if words[0] == "make" else "snakemake -n all"
            spread = f"median of {args.repeats}, {min(times):.1f} to {max(times):.1f}"
            print(f"{label:<20} {statistics.median(times):7.1f} s  ({spread})")
        print(rules(clone / "results").to_string(index=False))


def seconds(folder: Path, *command: str) -> float:
    """Wall time of a command that must succeed."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def rules(folder: Path) -> pd.DataFrame:
    """Jobs, and wall seconds in all, of each rule (of `train`: of each strategy)."""
    rows = []
    for path in sorted(folder.rglob("*.tsv")):
        first, *rest = path.relative_to(folder).with_suffix("").parts
        # benchmarks/RULE/... or STRATEGY/WORKLOAD/benchmarks/RULE
        name = rest[0] if first == "benchmarks" else f"train {first}" if rest[-1] == "train" else rest[-1]
        rows.append({"rule": name, "seconds": pd.read_csv(path, sep="\t").s.sum()})
    return pd.DataFrame(rows).groupby("rule").seconds.agg(jobs="count", seconds="sum").reset_index()


if __name__ == "__main__":
    run_program(main)
