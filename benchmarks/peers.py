#!/usr/bin/env python3
"""Compare this trainer with a bare PyTorch loop, Hugging Face's Trainer and
Lightning: one step each in turn, in one process.

On a shared machine only this can resolve a few percent. Each trainer runs in a
thread and waits at the start of each step for its turn; ratios are relative to
the bare loop's step of the same round. Start-up is measured in separate
processes. With several ranks (--strategies ddp fsdp zero2) it is
compared with DDP, fully_shard and deepspeed by hand, and with the other
trainers that do the same on a CPU. Run it by `make bench`, which makes the
environment that it needs (.venv/peers).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.places import SHAPES, SIZES, prepare, torchrun  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program
from shardlab.files import write_json, write_text
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import Run

OTHERS = {
    "single": ["hugging_face", "lightning"],
    "ddp": ["hugging_face", "lightning"],
    "fsdp": ["lightning"],
    "zero2": ["hugging_face"],
}
"""Trainers to compare with, by strategy. On a CPU Hugging Face's uses DDP if FSDP is requested, and Lightning's does
not support DeepSpeed.
"""
LEAST = 10
"""Minimum number of rounds: the first ones are not counted."""
ALONE = 10
"""Steps of the processes whose start-up is measured."""


def main() -> None:
    """Race, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, metavar="SIZE", default=["tiny", "middle", "large"])
    parser.add_argument("--strategies", nargs="+", choices=OTHERS, metavar="NAME", default=["single"])
    parser.add_argument("--rounds", type=int, default=80, help="steps of each; the first tenth is not counted")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="processes of each, of the first and last size, for start-up; 0: none",
    )
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks"), help="folder of the CSV files")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(args.inside, args.alone)
        return
    if args.rounds < LEAST:
        raise UserError(f"--rounds {args.rounds}: too few for a result; use at least {LEAST}.")
    steps, starts = [], []
    with tempfile.TemporaryDirectory() as folder:
        for strategy in args.strategies:
            for size in args.sizes:
                place = Path(folder) / f"{strategy}-{size}"
                ranks = prepare(place, strategy, size, args.rounds).world_size
                names = ["bare", "shardlab", *OTHERS[strategy]]
                found = pd.DataFrame(started(place, ranks, names))
                steps += rows(found, strategy, size, names, args.rounds // 10)
                if ranks == 1 and args.repeats and size in (args.sizes[0], args.sizes[-1]):
                    prepare(place / "alone", strategy, size, ALONE)
                    starts += startups(place / "alone", size, names, args.repeats)
    for name, each in (("peers", steps), ("peers_start", starts)):
        if each:
            table = pd.DataFrame(each)
            write_text(args.output / f"{name}.csv", table.to_csv(index=False))
            print(f"{table.to_markdown(index=False, floatfmt='.4g')}\n")


def started(place: Path, ranks: int, names: list[str], alone: str = "") -> Any:
    """Run this program on the ranks; return what rank 0 wrote."""
    command = [sys.executable, *torchrun(ranks), __file__, "--inside", str(place), "--alone", alone]
    write_json(place / "names.json", {"names": names})
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "BEGUN": str(time.time())}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise UserError(f"the race in {place.name} failed; its end was:\n{done.stdout[-3000:]}")
    return json.loads((place / "reported.json").read_text())


def inside(place: Path, alone: str) -> None:
    """Run one rank of a race, or of one trainer alone."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from shardlab.runtime import distributed
    from shardlab.settings.types import read_run

    run = read_run(place / "run.json")
    distributed.start(SiteRuntime())
    names = json.loads((place / "names.json").read_text())["names"]
    output = Path(tempfile.mkdtemp(dir=place))
    reported = by_itself(run, place, output, alone) if alone else race(run, place, output, names)
    if distributed.is_main():
        write_json(place / "reported.json", reported)
    distributed.finish()


def race(run: Run, place: Path, output: Path, names: list[str]) -> Any:
    """Return the seconds of each step of each trainer, in turn."""
    from trainers import TRAINERS  # type: ignore[import-not-found]
    from trainers.race import Race  # type: ignore[import-not-found]

    conductor = threading.Semaphore(0)
    turns = {name: threading.Semaphore(0) for name in names}
    failures: list[BaseException] = []
    ended: set[str] = set()

    def begin(name: str) -> None:
        conductor.release()
        turns[name].acquire()

    races = {
        name: Race(run, place, place / "initial.safetensors", output, lambda name=name: begin(name)) for name in names
    }

    def work(name: str) -> None:
        try:
            TRAINERS[name](races[name])
        except BaseException as error:
            failures.append(error)
        ended.add(name)
        conductor.release()

    for name in names:
        threading.Thread(target=work, args=(name,), daemon=True).start()
        conductor.acquire()  # set-up at its first step
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(run.recipe.max_steps or 0):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if failures or name in ended:
                raise next(iter(failures), UserError(f"{name} ended before its step {number}; see trainers."))
            started = time.perf_counter()
            turns[name].release()
            conductor.acquire()
            seconds[name].append(time.perf_counter() - started)
    check({name: each.losses for name, each in races.items()}, run)
    return seconds


def check(losses: dict[str, list[float]], run: Run) -> None:
    """Check that all trained the same: the losses of the first steps, before rounding noise grows."""
    first = {name: np.array(values[:5]) for name, values in losses.items() if values}
    for name, values in first.items():
        if len(values) < min(5, run.recipe.max_steps or 5) or not np.allclose(values, first["bare"], rtol=2e-4):
            raise UserError(f"{name} did not train like the bare loop: got {values}, expected {first['bare']}.")


def by_itself(run: Run, place: Path, output: Path, name: str) -> Any:
    """Return the seconds from the process's start to its first step."""
    from trainers import TRAINERS
    from trainers.race import Race

    started: list[float] = []
    race = Race(run, place, place / "initial.safetensors", output, lambda: started.append(time.time()))
    TRAINERS[name](race)
    return started[0] - float(os.environ["BEGUN"])


def rows(table: pd.DataFrame, strategy: str, size: str, names: list[str], skipped: int) -> list[dict[str, Any]]:
    """Return median step, throughput, and the median ratio to the bare loop's step of the same round with its error."""
    counted = table.iloc[skipped:-1]  # a trainer's last turn includes its shutdown
    samples, length = SHAPES[size]
    found = []
    for name in names:
        ratio = counted[name] / counted["bare"]
        found.append(
            {
                "strategy": strategy,
                "size": size,
                "trainer": name,
                "step ms": 1000 * counted[name].median(),
                "tokens/s": samples * length / counted[name].median(),
                "to bare": ratio.median(),
                "standard error": error_of_median(ratio),
                "more ms": 1000 * (counted[name] - counted["bare"]).median(),
            }
        )
    return found


def error_of_median(values: "pd.Series[float]") -> float:
    """Return the standard error of a median, by bootstrapping."""
    draw = np.random.default_rng(0)
    medians = np.median(draw.choice(values.to_numpy(), (500, len(values))), axis=1)
    return float(medians.std())


def startups(place: Path, size: str, names: list[str], repeats: int) -> list[dict[str, Any]]:
    """Medians over processes of each trainer alone, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            seconds[name].append(started(place, 1, names, name))
    return [
        {"size": size, "trainer": name, "first step s": statistics.median(found)} for name, found in seconds.items()
    ]


if __name__ == "__main__":
    run_program(main)
