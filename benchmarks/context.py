#!/usr/bin/env python3
"""Compare head-tail with plain pieces of sequences: attention alone, on a CPU.

Causal, forward and backward. Prints a Markdown table. Idle is the CPU time for
which a rank would wait for the one with the most to do: it does not depend on
what else the machine does, unlike the seconds of a step. Needs no GPU and no
data.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import run_program
from shardlab.models._sequence import SequenceSplit
from shardlab.strategies.context import ALGORITHMS

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64


def main() -> None:
    """Measure each algorithm that depends on the split, and Ulysses, which does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--length", type=int, default=4096, help="positions of the whole sequence")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/context.csv"))
    parser.add_argument("--repeats", type=int, default=5, help="passes, of which the median counts")
    args = parser.parse_args()
    rows = [row for ranks in args.ranks for row in measured(ranks, args.length, args.repeats)]
    show(pd.DataFrame(rows), args.output, ".2f")


def measured(ranks: int, length: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield a row per algorithm and split."""
    for name in ALGORITHMS:
        for head_tail in (False,) if name == "ulysses" else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                spawn(on_rank, (ranks, length, repeats, name, head_tail, folder), ranks)  # type: ignore[no-untyped-call]
                seconds = [float((Path(folder) / str(rank)).read_text()) for rank in range(ranks)]
            most, mean = max(seconds), statistics.mean(seconds)
            split = "head and tail" if head_tail else "plain"
            row = {"ranks": ranks, "context": name, "pieces": split, "CPU s, busiest rank": most, "CPU s, mean": mean}
            yield row | {"idle": 1 - mean / most}


def on_rank(rank: int, ranks: int, length: int, repeats: int, name: str, head_tail: bool, folder: str) -> None:
    """Write the CPU seconds of a pass on one rank to a file with its number."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    split = SequenceSplit(ranks, rank, head_tail=head_tail)
    torch.manual_seed(rank)
    shapes = [(1, heads, length // ranks, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    attend: Any = ALGORITHMS[name]
    parts: list[Any] = [torch.randn(shape, requires_grad=True) for shape in shapes]
    seconds = []
    for _ in range(repeats + 1):
        dist.barrier()
        started = time.process_time()
        attend(*parts, None, causal=True, split=split, group=dist.group.WORLD).sum().backward()
        seconds.append(time.process_time() - started)
    Path(folder, str(rank)).write_text(str(statistics.median(seconds[1:])))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_program(main)
