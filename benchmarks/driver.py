#!/usr/bin/env python3
"""CPU time of Snakemake's process, with and without the patch of its scheduler:
per finished job; or with --waiting, on a cluster, as a part of a core while
that many jobs wait in Slurm (they are held, and cancelled at the end).

Example: python benchmarks/driver.py --jobs 100 300 1000
"""

import argparse
import getpass
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT

SNAKEFILE = """
rule all:
    input: expand("out/{{n}}", n=range({jobs}))
rule one:
    output: "out/{{n}}"
    shell: "sleep 0.2; touch {{output}}"
"""
HELD = """
rule all:
    input: expand("out/{{n}}", n=range({jobs}))
rule one:
    output: "out/{{n}}"
    resources: slurm_extra="--hold", mem_mb=100, runtime=5
    shell: "touch {{output}}"
"""
DRIVER = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "patched":
    from shardlab.patches import snakemake_scheduler
    snakemake_scheduler.install()
from snakemake.cli import main
began = time.perf_counter()
try:
    main(sys.argv[3:])
except SystemExit as end:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([end.code, used.ru_utime + used.ru_stime, time.perf_counter() - began]))
"""
"""Prints its status, and the CPU and wall seconds of this process alone."""


def main() -> None:
    """Run, print a row per number of jobs, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[100, 300, 1000], help="independent jobs of 0.2 s")
    parser.add_argument("--schedulers", nargs="+", default=["ilp", "greedy"], help="of Snakemake")
    parser.add_argument("--cores", type=int, default=4, help="jobs at a time")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/driver.csv"), help="CSV file to write")
    parser.add_argument("--waiting", type=int, help="measure this instead: jobs in Slurm's queue")
    args = parser.parse_args()
    if args.waiting:
        for how in ("as it is", "patched"):
            print(f"{args.waiting} jobs waiting in Slurm, {how}: {waiting(args.waiting, how):.1%} of a core")
        return
    rows = []
    for scheduler in args.schedulers:
        for jobs in args.jobs:
            row: dict[str, object] = {"scheduler": scheduler, "jobs": jobs}
            for how in ("as it is", "patched"):
                cpu, wall = seconds(jobs, how, scheduler, args.cores)
                row |= {f"CPU s, {how}": cpu, f"ms a job, {how}": 1000 * cpu / jobs, f"wall s, {how}": wall}
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    table = pd.DataFrame(rows)
    show(table, args.output, ".1f")


def seconds(jobs: int, how: str, scheduler: str, cores: int) -> tuple[float, float]:
    """Return the CPU and wall seconds of a call that runs ``jobs`` jobs.

    Raises:
        UserError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Snakefile").write_text(SNAKEFILE.format(jobs=jobs))
        words = ["--cores", str(cores), "--scheduler", scheduler, "--quiet", "all"]
        command = [sys.executable, "-c", DRIVER, str(ROOT / "scripts"), how, *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        try:
            status, cpu, wall = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            status = 1
        if status:
            raise UserError(f"a call with {jobs} jobs failed: {done.stderr[-500:]}")
    return cpu, wall


def waiting(jobs: int, how: str, measured: float = 60) -> float:
    """Return the fraction of a core that a driver uses while its jobs wait, over ``measured`` seconds."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        (Path(folder) / "Snakefile").write_text(HELD.format(jobs=jobs))
        words = ["--executor", "slurm", "--jobs", str(jobs), "--slurm-status-command", "squeue", "--quiet", "all"]
        command = [sys.executable, "-c", DRIVER, str(ROOT / "scripts"), how, *words]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
            try:
                while driver.poll() is None and queued() < jobs:
                    time.sleep(1)
                time.sleep(5)
                before = cpu_seconds(driver.pid)
                time.sleep(measured)
                return (cpu_seconds(driver.pid) - before) / measured
            finally:
                driver.kill()
                subprocess.run(["scancel", f"--user={getpass.getuser()}", "--state=PENDING"], check=False)


def queued() -> int:
    """Return the number of this user's jobs that wait in Slurm."""
    return len(subprocess.run(["squeue", "--me", "--noheader"], capture_output=True, text=True).stdout.splitlines())


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    run_program(main)
