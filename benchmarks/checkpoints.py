#!/usr/bin/env python3
"""Measure the cost of a checkpoint: how long a step waits for it, written
synchronously or in the background, and how long a run takes to resume. By model
size, on one rank and on two. Needs no GPU.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.places import SIZES, prepare, torchrun  # type: ignore[import-not-found]
from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program
from shardlab.files import read_json, write_json
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import read_run

EVERY, COUNT = 6, 5
"""Steps between checkpoints, and number of checkpoints of each kind."""
STEPS = EVERY * (2 * COUNT + 1)


def main() -> None:
    """Train, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, metavar="SIZE", default=["tiny", "middle", "large"])
    parser.add_argument("--strategies", nargs="+", default=["single", "fsdp"])
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks"), help="folder of the CSV file")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(args.inside)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for strategy in args.strategies:
            for size in args.sizes:
                place = Path(folder) / f"{strategy}-{size}"
                run = prepare(place, strategy, size, STEPS)
                rows.append({"strategy": strategy, "size": size} | started(place, run.world_size))
    table = pd.DataFrame(rows)
    show(table, args.output / "checkpoints.csv", ".3g")


def started(place: Path, ranks: int) -> Any:
    """Run this program on the ranks; return what rank 0 measured."""
    command = [sys.executable, *torchrun(ranks), __file__, "--inside", str(place)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the checkpoints of {place.name} failed; its end was:\n{(done.stdout + done.stderr)[-3000:]}")
    return read_json(place / "reported.json", "what was measured", "measure again")


def inside(place: Path) -> None:
    """Run one rank: steps with occasional checkpoints, alternately synchronous and in the background."""
    import torch

    from shardlab import parallel
    from shardlab.records import manifest
    from shardlab.runtime import distributed, tasks
    from shardlab.runtime.batches import Steps
    from shardlab.train.checkpoint import Checkpointer
    from shardlab.train.resume import initial_manifest, restore
    from shardlab.train.step import ControlFlags, train_step

    run = read_run(place / "run.json")
    distributed.start(SiteRuntime())
    world = distributed.world(run, "cpu")
    task = tasks.load(run.task, place, torch.float32, world.device)
    weights = place / "initial.safetensors"
    start = initial_manifest(run, task, world, "")
    engine = parallel.build(run, task, world, weights)
    steps = Steps(task, engine, run.recipe, run.seed, world)
    restore(start, engine, steps, None, world, place)
    checkpointer = Checkpointer(run, task, engine, world, place, start)
    seconds: list[float] = []
    stalls: dict[bool, list[float]] = {True: [], False: []}
    for number in range(STEPS - 1):
        began = time.perf_counter()
        train_step(
            engine, steps[number], world, lambda *_: None, ControlFlags(stop=False, checkpoint=False), skip=False
        )
        seconds.append(time.perf_counter() - began)
        if (number + 1) % EVERY == 0:
            at_once = len(stalls[True]) <= len(stalls[False])
            checkpointer.wait()
            began = time.perf_counter()
            checkpointer.checkpoint(number + 1)
            if at_once:
                checkpointer.wait()
            stalls[at_once].append(time.perf_counter() - began)
    checkpointer.close()
    if world.is_rank0:
        latest_checkpoint = manifest.saved(place)[0]
        size = sum(file.stat().st_size for file in latest_checkpoint.rglob("*") if file.is_file())
    else:
        latest_checkpoint, size = Path(), 0
    latest_checkpoint = world.gather(latest_checkpoint)[0]
    began = time.perf_counter()
    restore(start, parallel.build(run, task, world, weights), steps, latest_checkpoint, world, place)
    resumed = time.perf_counter() - began
    if world.is_rank0:
        step = statistics.median(seconds)
        # The steps after every second checkpoint, which is written in the background.
        after = range(2 * EVERY, STEPS - EVERY, 2 * EVERY)
        slowed = [sum(seconds[i : i + EVERY]) - step * EVERY for i in after]
        reported = {
            "step ms": 1000 * step,
            "checkpoint MiB": size / 2**20,
            "synchronous ms": 1000 * statistics.median(stalls[True]),
            "asynchronous ms": 1000 * statistics.median(stalls[False]),
            "later steps ms": 1000 * statistics.median(slowed),
            "synchronous, in steps": statistics.median(stalls[True]) / step,
            "asynchronous, in steps": (statistics.median(stalls[False]) + max(0.0, statistics.median(slowed))) / step,
            "resume s": resumed,
        }
        write_json(place / "reported.json", reported)
        shutil.rmtree(place / "checkpoints", ignore_errors=True)
    distributed.finish()


if __name__ == "__main__":
    run_program(main)
