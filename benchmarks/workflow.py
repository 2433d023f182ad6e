#!/usr/bin/env python3
"""Time what a user waits for: a small matrix by Snakemake and by a shell script
with the same lines, the second call, and the dry run of the default matrix;
with --whole also `make run`. All in fresh clones.

Installing packages is excluded (the clones use this checkout's .venv).
Committed files only.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.clones import VENV, cloned, seconds  # type: ignore[import-not-found]
from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program
from shardlab.report.snakemake_jobs import jobs

LOCAL = [str(VENV / "bin/snakemake"), "--profile", "workflow/profiles/local"]
ORDER = ["prepare", "resolve", "init", "plan", "train", "noise_floor", "evaluate", "compare", "summarize", "report"]
"""Rules whose lines the script runs."""


def main() -> None:
    """Clone, time, print one line per result; for `make run` also the time of each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["single", "ddp"], help="strategies of the small matrix")
    parser.add_argument(
        "--repeats", type=int, default=3, help="repetitions of the short commands, of which the median is reported"
    )
    parser.add_argument("--whole", action="store_true", help="also `make run`")
    parser.add_argument(
        "--output", type=Path, default=Path("results/benchmarks/workflow.csv"), help="CSV file to write"
    )
    args = parser.parse_args()
    if not VENV.exists():
        raise UserError(".venv is missing; make it with: make .venv/run.")
    output = args.output.resolve()
    matrix = [
        "--config",
        "noise_floor_runs=0",
        "workloads=[mlp,vit]",
        f"strategies=[{','.join(args.strategies)}]",
        "--",
        "all",
    ]
    with tempfile.TemporaryDirectory() as place:
        clone, other = (cloned(Path(place) / name) for name in ("snakemake", "script"))
        found = {"snakemake, a small matrix": seconds(clone, *LOCAL, *matrix)}
        found["the same lines by a script"] = seconds(other, "bash", "-e", script(clone, other, matrix))
        found["snakemake, second call"] = median(clone, args.repeats, *LOCAL, *matrix)
        found["snakemake -n all, 40 runs"] = median(other, args.repeats, LOCAL[0], "-n", "all")
        if args.whole:
            whole = cloned(Path(place) / "whole")
            found["make run, 40 runs"] = seconds(whole, "make", "run")
            print(rules(whole).to_markdown(index=False, floatfmt=".0f"), end="\n\n")
    table = pd.DataFrame({"what": list(found), "seconds": list(found.values())})
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end")
    show(table, output, ".1f")


def script(clone: Path, folder: Path, matrix: list[str]) -> str:
    """Write a shell script in ``folder`` with the lines of the jobs that ran in ``clone``."""
    words = [*LOCAL, "--detailed-summary", *matrix]
    reported = subprocess.run(words, cwd=clone, capture_output=True, text=True, check=True).stdout
    rows = [
        row for row in csv.DictReader(reported.splitlines(), delimiter="\t") if row["shellcmd"] not in (None, "", "-")
    ]
    lines = {row["shellcmd"]: row for row in sorted(rows, key=lambda row: ORDER.index(row["rule"]))}
    logs = {str(Path(row["log-file(s)"]).parent) for row in lines.values()}
    text = [f"export PATH={VENV / 'bin'}:$PATH", f"mkdir -p {' '.join(sorted(logs))}", *lines]
    (folder / "typed.sh").write_text("\n".join(text) + "\n")
    return "typed.sh"


def median(folder: Path, repeats: int, *command: str) -> float:
    """Return the median wall time of a command."""
    return statistics.median(seconds(folder, *command) for _ in range(repeats))


def rules(folder: Path) -> pd.DataFrame:
    """Return the number of jobs, and total wall seconds, of each rule (of `train`: of each strategy)."""
    rows = [
        {
            "rule": f"train {Path(job.name).parts[1]}" if job.rule == "train" else job.rule,
            "seconds": job.end - job.start,
        }
        for job in jobs(folder)
    ]
    return pd.DataFrame(rows).groupby("rule").seconds.agg(jobs="count", seconds="sum").reset_index()


if __name__ == "__main__":
    run_program(main)
