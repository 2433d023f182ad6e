#!/usr/bin/env python3
"""Compare head-tail with plain pieces of sequences, in attention and in a step.

Causal, forward and backward. Prints a Markdown table. All is CPU time, which
hardly depends on what else the machine does: idle is the part of attention's
for which a rank would wait for the one with the most to do; the step, of a
decoder with one block, takes as long as that of its busiest rank, where each
has a core and transfers are free. Needs no GPU and no data.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.multiprocessing.spawn import spawn

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import run_program
from shardlab.models import llama
from shardlab.models._sequence import SequenceSplit
from shardlab.strategies import context
from shardlab.strategies.context import ALGORITHMS

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
DECODER = {"vocab_size": 1024, "layers": 1, "hidden": 1376}


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
        splits = (False,) if name == "ulysses" else (False, True)
        with tempfile.TemporaryDirectory() as folder:
            spawn(on_rank, (ranks, length, repeats, name, splits, folder), ranks)  # type: ignore[no-untyped-call]
            found = [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(ranks)]
        for number, head_tail in enumerate(splits):
            seconds, steps = ([rank[kind][number] for rank in found] for kind in ("attention", "step"))
            most, mean = max(seconds), statistics.mean(seconds)
            split = "any" if name == "ulysses" else "head and tail" if head_tail else "plain"
            row = {"ranks": ranks, "context": name, "pieces": split, "CPU s, busiest rank": most, "CPU s, mean": mean}
            yield row | {"idle": 1 - mean / most, "step s": max(steps)}


def on_rank(rank: int, ranks: int, length: int, repeats: int, name: str, splits: tuple[bool, ...], folder: str) -> None:
    """Write the CPU seconds of each split on one rank to a file with its number: of a pass through attention, and of a
    step. Splits take turns, so that what else the machine does meets all of them.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    each = [SequenceSplit(ranks, rank, head_tail=head_tail) for head_tail in splits]
    result = {}
    for kind, work in (("attention", attention), ("step", step)):
        runs = [work(name, split, length) for split in each]
        turns = [[timed(run) for run in runs] for _ in range(repeats + 1)][1:]
        result[kind] = [statistics.median(seconds) for seconds in zip(*turns, strict=True)]
    Path(folder, str(rank)).write_text(json.dumps(result))
    dist.destroy_process_group()


def timed(run: Callable[[], None]) -> float:
    """Return the CPU seconds of this rank's part of what all ranks start together."""
    dist.barrier()
    started = time.process_time()
    run()
    return time.process_time() - started


def attention(name: str, split: SequenceSplit, length: int) -> Callable[[], None]:
    """Return one pass through attention alone, forward and backward."""
    shapes = [(1, heads, length // split.ranks, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    parts: list[Any] = [torch.randn(shape, requires_grad=True) for shape in shapes]
    attend: Any = ALGORITHMS[name]
    return lambda: attend(*parts, None, causal=True, split=split, group=dist.group.WORLD).sum().backward()


def step(name: str, split: SequenceSplit, length: int) -> Callable[[], None]:
    """Return a forward and backward pass of a decoder, without FSDP, whose traffic does not depend on the split."""
    model = llama.Model(**DECODER, heads=HEADS, kv_heads=KV_HEADS, dim=HEADS * HEAD_DIM)
    context.apply(model, name, split, dist.distributed_c10d._get_default_group())
    tokens = torch.randint(DECODER["vocab_size"], (1, length // split.ranks))
    return lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()


if __name__ == "__main__":
    run_program(main)
