#!/usr/bin/env python3
"""Cost of starting a training's ranks: 1, 2 and 8 of them, forked by
scripts/fork_torchrun.py and by plain torchrun, in turn. Each starts,
imports what a training imports, joins the process group and ends. Then whole
trainings of a small Llama, started both ways, whose weights must be bitwise
equal.
Needs no GPU.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.places import prepare  # type: ignore[import-not-found]
from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT, sha256

RANK = """
import shardlab.trainer.loop, shardlab.strategies.native, torch._dynamo
from shardlab.training import distributed
distributed.start("cpu")
distributed.finish()
"""
IMPORTS = "--imports=shardlab.trainer.loop,shardlab.strategies.{},torch._dynamo"
STEPS = 20
"""Steps of a whole training."""


def main() -> None:
    """Start, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 8])
    parser.add_argument(
        "--trainings",
        nargs="*",
        metavar="STRATEGY",
        default=["fsdp", "fsdp_tp", "zero2"],
        help="strategies of whole trainings (fsdp fsdp_tp zero2), on 2 ranks or, in two ways parallel, on 4",
    )
    parser.add_argument("--repeats", type=int, default=2, help="repetitions of each, of which the median is reported")
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
        rows = [
            {"ranks": ranks, "started": way} | started(words, ranks, str(program))
            for _ in range(args.repeats)
            for ranks in args.ranks
            for way, words in ways(inside, "native").items()
        ]
        trained = [
            row
            for strategy in args.trainings
            for row in trainings(Path(folder) / strategy, strategy, inside, args.repeats)
        ]
    table = medians(rows, ["ranks", "started"])
    least = table[table.ranks == min(args.ranks)].set_index("started").seconds
    table["to the fewest"] = table.seconds / table.started.map(least)
    show(table, args.output, ".3g")
    if trained:
        print()
        table = medians(trained, ["strategy", "ranks", "started"])
        show(table, args.output.with_stem(f"{args.output.stem}_trainings"), ".3g")


def ways(inside: list[str], engine: str) -> dict[str, list[str]]:
    """Return commands that start ranks; torchrun's and the program's follow. ``engine``: file of its strategy."""
    return {
        "forked": [*inside, str(ROOT / "scripts/fork_torchrun.py"), IMPORTS.format(engine)],
        "torchrun": [*inside, "-m", "torch.distributed.run", "--log-dir=/dev/null"],
    }


def trainings(place: Path, strategy: str, inside: list[str], repeats: int) -> list[dict[str, Any]]:
    """Return a row per training of a strategy, started both ways in turn.

    Raises:
        UserError: their final weights differ.
    """
    run = prepare(place, strategy, "tiny", STEPS, nodes=1, ranks_per_node=4 if "_" in strategy else 2)
    rows, weights = [], set()
    for number in range(repeats):
        for way, words in ways(inside, run.engine_file).items():
            output = place / f"{way}-{number}"
            paths = {"settings": place / "run.json", "data": place, "weights": place / "initial.safetensors"}
            program = [str(ROOT / "scripts/train.py"), *(f"--{key}={path}" for key, path in paths.items())]
            figures = started(words, run.world_size, *program, f"--output={output}")
            rows.append({"strategy": strategy, "ranks": run.world_size, "started": way} | figures)
            weights.add(sha256(output / "model.safetensors"))
    if len(weights) > 1:
        raise UserError(f"{strategy}: forked ranks and those of plain torchrun did not end at the same weights.")
    return rows


def medians(rows: list[dict[str, Any]], keys: list[str]) -> pd.DataFrame:
    """Return the median seconds of the rows with the same keys."""
    return pd.DataFrame(rows).groupby(keys, sort=False)[["seconds", "CPU s"]].median().reset_index()


def started(words: list[str], ranks: int, *program: str) -> dict[str, float]:
    """Return the wall and CPU seconds of a program on this number of ranks, from its start to its end."""
    command = [*words, f"--nproc-per-node={ranks}", "--standalone", *program]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "scripts")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise UserError(f"{ranks} ranks did not start or train:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "CPU s": used}


if __name__ == "__main__":
    run_program(main)
