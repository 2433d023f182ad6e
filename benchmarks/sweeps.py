#!/usr/bin/env python3
"""Measure the overhead of a sweep before and after its trainings: `snakemake -n
all` of 10 to 10,000 runs, and of a bare Snakefile with as many jobs and files;
reading the Snakefile in one job; resolve.py of one run; summarize.py of all.

Needs no GPU and trains one tiny run. Committed files only.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT
from shardlab.records.reports import TestReport, TrainReport
from shardlab.settings import load, resolve, run_identity

COUNTS = [10, 100, 1_000, 10_000]
STEP = 1e-5
"""Between two learning rates."""
ONE = {"workloads": ["mlp"], "strategies": ["single"], "noise_floor_runs": 0, "max_runs": 1_000_000}
BARE = """
NAMES = [f"single/mlp@learning_rate={{i}}" for i in range(1, {count} + 1)]
DATA = expand("data/prepared/pairs/{{name}}", name=["dataset.json", "train", "validation", "test"])
FOLDER = "results/{{strategy}}/{{workload}}"
RUNS = [f"results/{{name}}{{end}}" for name in NAMES for end in (".done", "/test.json")]

rule all:
    input: RUNS, "results/summary.csv", "results/summary.md", "results/report.html"
rule prepare:
    output: DATA
    shell: "touch {{output}}"
rule resolve_init:
    output: "results/init/mlp/run.json"
    shell: "touch {{output}}"
rule resolve:
    output: FOLDER + "/run.json"
    log: FOLDER + "/logs/resolve.log"
    shell: "touch {{output}}"
rule init:
    input: "results/init/mlp/run.json", DATA
    output: "results/init/mlp.safetensors", "results/init/mlp.json"
    shell: "touch {{output}}"
rule plan:
    input: "results/init/mlp/run.json", DATA
    output: "results/plan.md"
    shell: "touch {{output}}"
rule train:
    input: FOLDER + "/run.json", DATA, "results/init/mlp.safetensors"
    output: FOLDER + ".done"
    log: FOLDER + "/logs/train.log"
    shell: "touch {{output}}"
rule evaluate:
    input: FOLDER + "/run.json", DATA, FOLDER + ".done", "results/init/mlp.json"
    output: FOLDER + "/test.json"
    log: FOLDER + "/logs/evaluate.log"
    shell: "touch {{output}}"
rule summarize:
    input: RUNS, "results/plan.md"
    output: "results/summary.csv", "results/summary.md", "results/sweep.csv"
    shell: "touch {{output}}"
rule report:
    input: "results/summary.csv"
    output: "results/report.html"
    shell: "touch {{output}}"
"""
"""The same rules without content: the cost of Snakemake itself for that many jobs and files."""


def main() -> None:
    """Clone, measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS, help="runs of the sweeps")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/sweeps.csv"), help="CSV file to write")
    args = parser.parse_args()
    output = args.output.resolve()
    with tempfile.TemporaryDirectory() as place:
        clone, bare = Path(place) / "shardlab", Path(place) / "bare"
        bare.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        os.chdir(clone)
        call(["all"], ONE | {"recipe": {"max_steps": 1}, "sweep": sweep(1)})
        table = pd.DataFrame([measured(count, clone, bare) for count in args.counts])
    show(table, output, ".3g")


def sweep(count: int) -> dict[str, Any]:
    """Return a sweep over ``count`` learning rates."""
    return {"learning_rate": {"first": STEP, "last": round(count * STEP, 8), "step": STEP}}


def measured(count: int, clone: Path, bare: Path) -> dict[str, Any]:
    """Return a row: seconds and memory of each measurement for a sweep of ``count`` runs."""
    (bare / "Snakefile").write_text(BARE.format(count=count))
    config = ONE | {"recipe": {"max_steps": 1}, "sweep": sweep(count)}
    # No results exist yet for either of them.
    with tempfile.TemporaryDirectory() as aside:
        shutil.move(str(clone / "results"), aside)
        shutil.move(str(clone / "data"), aside)
        ours, ours_mib, jobs = call(["-n", "all"], config)
        other, theirs_mib, bare_jobs = call(["-n", "all"], None, cwd=bare)
        if jobs != bare_jobs:
            raise UserError(f"the bare Snakefile has {bare_jobs} jobs, ours {jobs}; make them equal.")
        name = f"mlp@learning_rate={STEP * count:.5g}"
        target = ["--target-jobs", f"resolve:strategy=single,workload={name}", "--allowed-rules", "resolve"]
        job, _, _ = call(["-n", *target], config)
        shutil.rmtree(clone / "results", ignore_errors=True)
        for folder in ("results", "data"):
            shutil.move(str(Path(aside) / folder), clone)
    words = ["--config", json.dumps(config), "--strategy", "single", "--workload", name, "--output", "/dev/stdout"]
    one, _, _ = timed([sys.executable, "scripts/shardlab", "resolve", *words])
    pretend(config, clone / "results")
    command = [sys.executable, "scripts/shardlab", "summarize", "--check", "--config", json.dumps(config)]
    summarized, summarize_mib, _ = timed(command)
    return {
        "runs": count,
        "jobs": jobs,
        "dry run s": ours,
        "bare s": other,
        "ratio": ours / other,
        "MiB": ours_mib,
        "bare MiB": theirs_mib,
        "one job reads s": job,
        "resolve one s": one,
        "summarize s": summarized,
        "summarize MiB": summarize_mib,
    }


def pretend(config: dict[str, Any], results: Path) -> None:
    """Write reports of all runs of a sweep, from those of its first one."""
    checked = load.config(config)
    names = resolve.names(checked)
    first = results.joinpath(*names[0])
    train = TrainReport.read(first / "train.json", "train again")
    test = TestReport.read(first / "test.json", "evaluate again")
    for name in names[1:]:
        run = resolve.run(checked, *name)
        folder = results.joinpath(*name)
        if not folder.exists():
            local = run_identity.identity_of(run, train.identity.data)
            settings = run.model_dump(mode="json")
            train.model_copy(update={"settings": settings, "identity": local}).write(folder / "train.json")
            test.model_copy(update={"identity": local}).write(folder / "test.json")
            folder.with_name(f"{folder.name}.done").touch()


def call(targets: list[str], config: dict[str, Any] | None, cwd: Path | None = None) -> tuple[float, float, int]:
    """Return seconds, MiB and jobs of a call of Snakemake."""
    command = [str(Path(sys.executable).with_name("snakemake")), "--cores", "2"]
    if config is not None:
        Path("sweep.json").write_text(json.dumps(config))
        command += ["--configfile", "sweep.json"]
    seconds, mib, text = timed([*command, "--", *targets] if targets == ["all"] else [*command, *targets], cwd)
    found = re.search(r"^total\s+(\d+)", text, re.MULTILINE)
    return seconds, mib, int(found[1]) if found else 0


def timed(command: list[str], cwd: Path | None = None) -> tuple[float, float, str]:
    """Return wall seconds, peak MiB and output of a command that must succeed."""
    with tempfile.TemporaryFile("w+") as said:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=cwd, stdout=said, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        said.seek(0)
        text = said.read()
    if process.returncode:
        raise UserError(f"{' '.join(command)[:200]} failed: {text[-2000:]}")
    return seconds, used.ru_maxrss / 1024, text


if __name__ == "__main__":
    run_program(main)
