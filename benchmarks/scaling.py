#!/usr/bin/env python3
"""Measure memory, bytes sent and step time on 1, 2, 4 and 8 ranks for each family
of strategies.

All ranks share this machine: memory and bytes are the same on any machine, the
step time is not if it has fewer cores than ranks. Needs no GPU.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.places import SIZES, prepare, train  # type: ignore[import-not-found]
from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import Unsupported, UserError, run_program
from shardlab.files import read_json

STRATEGIES = ["ddp", "fsdp", "zero3", "tp", "pp@n_microbatches=8"]
RANKS = [1, 2, 4, 8]
STEPS = 6


def main() -> None:
    """Train, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--size", choices=SIZES, default="tall", help="size of the llama model")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks"), help="folder of the CSV file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        rows = [
            row
            for strategy in args.strategies
            for ranks in args.ranks
            if (row := trained(Path(place) / f"{strategy}-{ranks}", strategy, ranks, args.size))
        ]
    table = pd.DataFrame(rows)
    show(table, args.output / "scaling.csv", ".4g")


def trained(place: Path, strategy: str, ranks: int, size: str) -> dict[str, Any] | None:
    """Return a row; None if the strategy does not support this number of ranks."""
    recipe = {"global_batch_size": 8, "eval_batch_size": 8}
    try:
        run = prepare(place, strategy, size, STEPS, recipe, ranks_per_node=ranks)
    except Unsupported:
        return None
    done = train(place, run)
    if done.returncode:
        raise UserError(f"{strategy} on {ranks} ranks failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    report = read_json(place / "train.json", "report of the run", "train again")
    return {
        "strategy": strategy,
        "ranks": ranks,
        "tensor MiB per rank": max(rank["peak"] for rank in report["tensor_bytes"]) / 2**20,
        "sent MiB per rank and step": report["bytes_per_step"] / 2**20,
        "step ms": 1000 * report["step_seconds_median"],
    }


if __name__ == "__main__":
    run_program(main)
