#!/usr/bin/env python3
"""Measure how long plans of large models take on this machine, and show them:
Llama shapes on up to 1,024 ranks.

Needs no GPU and no data. Each plan is a separate process (shardlab plan).
"""

import argparse
import json
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
from shardlab.files import ROOT, read_json

CASES: list[tuple[str, str, int, int] | tuple[str, str, int, int, int]] = [
    ("7b", "fsdp", 1, 8),
    ("7b", "fsdp", 1, 8, 8),
    ("7b", "zero3", 1, 8),
    ("70b", "fsdp", 8, 8),
    ("70b", "fsdp_tp", 128, 8),
    ("405b", "fsdp", 128, 8),
    ("405b", "fsdp_tp", 128, 8),
]
"""Size, strategy, nodes, devices per node; chunks of the loss."""
DEVICE_GIB = 80
"""Memory of an H100, for the column that says whether it fits."""


def main() -> None:
    """Plan, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["7b", "70b", "405b"])
    parser.add_argument(
        "--output", type=Path, default=Path("results/benchmarks/planning.csv"), help="CSV file to write"
    )
    args = parser.parse_args()
    table = pd.DataFrame([planned(*case) for case in CASES if case[0] in args.sizes])
    show(table, args.output, ".4g")


def planned(size: str, strategy: str, nodes: int, devices: int, chunks: int = 1) -> dict[str, Any]:
    """Return a row: the result of one plan, and its cost."""
    ranks = nodes * devices
    figures = {"device_memory_gib": DEVICE_GIB}
    config = {
        "workloads": ["llama2"],
        "size": size,
        "nodes": nodes,
        "ranks_per_node": devices,
        "recipe": {"global_batch_size": max(64, ranks), "loss_chunks": chunks},
        "site_settings": {"srun": {}, "nodes_max": nodes, "hardware": figures},
    }
    words = ["--config", json.dumps(config), "--strategy", strategy, "--workload", "llama2", "--data", "no data"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", str(ROOT / "scripts/shardlab"), "plan", *words, "--results", folder]
        measure = "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]); "
        measure += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", measure, *command], capture_output=True, text=True)
        seconds = time.perf_counter() - started
        if done.returncode:
            raise UserError(f"{size} under {strategy} was not planned:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        plan = read_json(Path(folder) / strategy / "llama2/plan.json", "plan", "plan again")
    sent = sum(entry["bytes"] for entry in plan["traffic"])
    return {
        "size": size,
        "strategy": strategy,
        "ranks": ranks,
        "loss chunks": chunks,
        "GiB per rank": plan["predicted_memory_bytes"] / 2**30,
        f"fits {DEVICE_GIB} GiB": "yes" if plan["fits"] else "no",
        "sent GiB per step": sent / 2**30,
        "PFLOP per step": plan["flops_per_step"] / 1e15,
        "planning s": seconds,
        "planning MiB": int(done.stdout.split()[-1]) / 1024,
    }


if __name__ == "__main__":
    run_program(main)
