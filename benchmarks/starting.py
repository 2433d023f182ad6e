#!/usr/bin/env python3
"""What starting a training's ranks costs: 1, 2, 4 and 8 of them, forked by scripts/ranks.py and by plain torchrun, in
turn. Each starts, imports what a training imports, joins the process group and ends. Needs no GPU.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT, write_text

RANK = """
import shardlab.runs.loop, shardlab.strategies.native, torch._dynamo
from shardlab.training import distributed
distributed.start("cpu")
distributed.finish()
"""
IMPORTS = "--imports=shardlab.runs.loop,shardlab.strategies.native,torch._dynamo"


def main() -> None:
    """Start, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 8])
    parser.add_argument("--repeats", type=int, default=2, help="starts of each; their medians count")
    parser.add_argument("--image", type=Path, help="a .sif to start them in; needs apptainer")
    parser.add_argument(
        "--output", type=Path, default=Path("results/benchmarks/starting.csv"), help="CSV file to write"
    )
    args = parser.parse_args()
    inside = (
        ["apptainer", "exec", "--bind", f"{ROOT},/tmp", str(args.image), "python"] if args.image else [sys.executable]
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "rank.py"
        program.write_text(RANK)
        ways = {
            "forked": [*inside, str(ROOT / "scripts/ranks.py"), IMPORTS],
            "torchrun": [*inside, "-m", "torch.distributed.run", "--log-dir=/dev/null"],
        }
        rows = [
            {"ranks": ranks, "started": way}
            | dict(zip(("seconds", "CPU s"), started(words, ranks, program), strict=True))
            for _ in range(args.repeats)
            for ranks in args.ranks
            for way, words in ways.items()
        ]
    table = pd.DataFrame(rows).groupby(["ranks", "started"], sort=False)[["seconds", "CPU s"]].median().reset_index()
    least = table[table.ranks == min(args.ranks)].set_index("started").seconds
    table["to the fewest"] = table.seconds / table.started.map(least)
    write_text(args.output, table.to_csv(index=False))
    print(table.to_markdown(index=False, floatfmt=".3g"))


def started(words: list[str], ranks: int, program: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a start."""
    command = [*words, f"--nproc-per-node={ranks}", "--standalone", str(program)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "scripts")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise UserError(f"{ranks} ranks did not start:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    run_program(main)
