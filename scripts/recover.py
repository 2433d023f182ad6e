#!/usr/bin/env python3
"""Say what is there of each run: done, alive, finished without its driver, resumable from which step, or lost, and why.

Changes nothing: the next call of Snakemake does what this announces. Example: python scripts/recover.py --config '{}'
"""

import argparse
import fcntl
from pathlib import Path

from shardlab.errors import UserError, run_program
from shardlab.launch import attempts, slurm
from shardlab.report import manifest
from shardlab.report.records import TrainReport
from shardlab.settings import load, resolve
from shardlab.settings.identity import difference
from shardlab.settings.types import Run


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load.add_config_argument(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results (results)")
    args = parser.parse_args()
    planned, _ = resolve.matrix(args.config)
    for run in planned:
        print(f"{f'{run.strategy} x {run.workload}':<32} {state(run, args.results / run.strategy / run.workload)}")


def state(run: Run, folder: Path) -> str:
    """What is there of a run, and what the next call makes of it."""
    if holder := alive(folder):
        return f"alive: {holder} trains it; the next call follows it or waits for it"
    settings = run.model_dump(mode="json")
    trained = None
    if (folder / "train.json").exists():
        try:
            trained = difference(settings, TrainReport.read(folder / "train.json", "train again").settings) or ""
        except UserError as error:
            trained = str(error)
    if trained == "" and folder.with_suffix(".done").exists():
        return "done"
    if trained == "":
        return "finished, and its driver does not know: the next call takes it as it is"
    reason = f" of another {trained};" if trained else ""
    skipped = ""
    for place in manifest.saved(folder):
        try:
            found = manifest.read(place)
        except UserError as error:
            skipped += f" ({error})"
            continue
        if key := difference(settings, found.settings):
            return f"checkpoint of another {key}: set it back, or train with --config afresh=true{skipped}"
        return f"resumable after step {found.step}; {last(folder)}{skipped}"
    if not folder.exists():
        return "not begun"
    return f"from its first step:{reason} no checkpoint; {last(folder)}{skipped}"


def alive(folder: Path) -> str | None:
    """Who holds the lock of a run; None if nobody does."""
    lock = folder / ".lock"
    if not lock.exists():
        return None
    with lock.open("a+", encoding="utf-8") as file:
        file.seek(0)
        holder = file.read().strip()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return holder or "another process"
        return holder if holder and slurm.in_queue(holder) else None


def last(folder: Path) -> str:
    """How the last attempt ended."""
    story = attempts.history(folder)
    if not story:
        return "never begun"
    attempt = story[-1]
    where = f"Slurm job {attempt.slurm_job_id}" if attempt.slurm_job_id else attempt.host
    return f"attempt {attempt.number} ({where}) {attempt.why or 'ended without a word'}"


if __name__ == "__main__":
    run_program(main)
