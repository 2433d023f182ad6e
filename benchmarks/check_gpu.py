#!/usr/bin/env python3
"""Check one to eight GPUs of a machine: every strategy against one of them, and
one against a CPU.

Tiny trainings over NCCL are compared with `single` at the gradients of step 0,
each step's loss and gradient norm, and the test loss. float64 has to agree to
1e-10, float32 (without TF32) to 5e-6 per step and 1e-4 at the test loss. With
one GPU, parallel strategies run on one rank, which tests their code and NCCL
without communication. The program ends at the first workload in which a
strategy is not equal. How fast a large model trains: a run of its own, such as
results/fsdp/llama2@size=7b.done, whose train.json has speed, MFU and memory.

The table is printed as Markdown, row by row.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/parity"))

from cases import Case as Tiny  # type: ignore[import-not-found]

from helpers.common import save_initial  # type: ignore[import-not-found]
from shardlab.data import read, store
from shardlab.data.encoders import encode
from shardlab.errors import UserError, run_program
from shardlab.runtime import device
from shardlab.settings import load
from shardlab.settings.types import Run

BOUNDS = {
    "float64": dict.fromkeys(("gradient", "loss", "norm", "test"), 1e-10),
    "float32": dict.fromkeys(("gradient", "loss", "norm"), 5e-6) | {"test": 1e-4},
}
"""Arithmetic: maximum relative differences to one device."""
FIGURES = {"gradient": "gradient of step 0", "loss": "training loss", "norm": "gradient norm", "test": "test loss"}
"""Column of the table: its name in a sentence."""
COLUMNS = ["workload", "strategy", "ranks", "devices", "arithmetic", *FIGURES, "equal"]
MOST = 8
"""Maximum number of ranks."""
WORKLOADS = ("mlp", "mnist", "xsum", "vit", "llama2")
BATCHES = (5, 7, 11)
"""Samples per step: the first of these that exceeds the number of ranks and is not divisible by it."""
TO_CPU = "single (GPU to CPU)"


class Case(NamedTuple):
    """A training, the reference that it is compared with, and the folders of both."""

    label: str
    arithmetic: str
    run: Run
    reference: Run
    local: str
    other: str


def main() -> None:
    """Train, compare, print; the program ends at the first strategy that is not equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ranks", type=int, choices=range(1, MOST + 1), metavar="N", help="ranks (default: all GPUs, up to 8)"
    )
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=WORKLOADS,
        metavar="NAME",
        default=WORKLOADS,
        help="default: all",
    )
    parser.add_argument(
        "--strategies",
        nargs="+",
        choices=load.own_strategies(),
        metavar="NAME",
        default=load.own_strategies(),
        help="default: all but scripts",
    )
    args = parser.parse_args()
    # Keep this process off the GPUs, whose ranks it starts.
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=device.exact) as apart:
        names = apart.submit(seen).result()
        ranks = enough(len(names), args.ranks)
        print(heading(names[:ranks]))
        equality(args, ranks, apart)


def seen() -> list[str]:
    """Return the name of each GPU."""
    return [device.name(each) for each in device.devices_for_process("cuda", torch.accelerator.device_count())]


def enough(found: int, requested: int | None) -> int:
    """Ranks: as many as were asked for, or as there are GPUs.

    Raises:
        UserError: there are fewer GPUs.
    """
    ranks = requested or max(1, min(found, MOST))
    if ranks > found:
        raise UserError(f"PyTorch sees {found} GPUs here, but this needs {ranks}.")
    return ranks


def heading(names: list[str]) -> str:
    """Return date, devices and versions: the line above the tables."""
    now = datetime.now()
    devices = ", ".join(f"{count} x {name}" for name, count in Counter(names).items())
    below = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    versions = [f"PyTorch {torch.__version__}", *(f"{name} {version}" for name, version in below.items() if version)]
    return f"{now.day} {now:%B %Y}, {devices}, {', '.join(versions)}"


def cases(workload: str, strategies: list[str], ranks: int) -> list[Case]:
    """Return all trainings of a workload: each strategy in each arithmetic, on the most ranks that it supports."""
    alone = {name: run_of(workload, "single", name, ranks, 1) for name in BOUNDS}
    found = []
    for name, single in alone.items():
        on_cpu = single.model_copy(update={"site": single.site.model_copy(update={"device": "cpu"})})
        found.append(Case(TO_CPU, name, single, on_cpu, f"single-{name}", f"cpu-{name}"))
    for strategy in strategies:
        for name in BOUNDS if strategy != "single" else ():
            if run := most(workload, strategy, name, ranks):
                found.append(Case(strategy, name, run, alone[name], f"{strategy}-{name}", f"single-{name}"))
    return found


def most(workload: str, strategy: str, arithmetic: str, ranks: int) -> Run | None:
    """Return the run on the most ranks that it supports, on two or more if available; None if it supports none."""
    for count in range(ranks, min(ranks, 2) - 1, -1):
        try:
            run = run_of(workload, strategy, arithmetic, ranks, count)
        except UserError:
            continue  # needs more or fewer ranks, or does not apply to this workload or arithmetic
        if run.devices_per_node <= ranks:
            return run
    return None


def run_of(workload: str, strategy: str, arithmetic: str, ranks: int, count: int) -> Run:
    """Return a tiny run on ``count`` of the ranks, with the same batches for all runs of its workload."""
    size = next(each for each in BATCHES if each > ranks)
    run: Run = Tiny(strategy, workload, (("global_batch_size", size),), count, arithmetic).run()
    return run.model_copy(update={"site": run.site.model_copy(update={"device": "cuda"})})


def equality(args: argparse.Namespace, ranks: int, apart: ProcessPoolExecutor) -> None:
    """Train all cases and print the table.

    Raises:
        UserError: a strategy is not equal; its workload is the last one in the table.
    """
    from group import Server  # type: ignore[import-not-found]

    print(f"\n| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    # DeepSpeed chooses its device when it is imported, which is before the ranks know theirs.
    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "DS_ACCELERATOR": "cuda"}
    with Server(environment) as server, tempfile.TemporaryDirectory() as folder:
        for workload in args.workloads:
            place = Path(folder) / workload
            place.mkdir()
            found = cases(workload, args.strategies, ranks)
            train(server, place, found)
            rows = apart.submit(compared, place, found).result()
            for row in rows:
                shown = [f"{each:.0e}" if isinstance(each := row[name], float) else str(each) for name in COLUMNS]
                print(f"| {' | '.join(shown)} |", flush=True)
            judge(rows)


def train(server: Any, place: Path, found: list[Case]) -> None:
    """Train all runs of one workload, in groups with the same number of ranks."""
    from group import job

    runs = {case.other: case.reference for case in found} | {case.local: case.run for case in found}
    data = found[0].run.data
    store.write(place / "data", data, *encode(data, read(data, place)))
    groups = defaultdict(list)
    for name, run in runs.items():
        weights = place / f"{run.recipe.dtype}.safetensors"
        if not weights.exists():
            save_initial(run, weights)
        # These drive all of their devices from one process, as single does its only one.
        alone = run.strategy == "single" or run.options.single_process is not None
        groups[run.world_size, alone, run.engine].append(job(run, place / "data", weights, place / name))
    for (size, alone, _), jobs in groups.items():
        print(f"{place.name}: {len(jobs)} trainings on {size} ranks", file=sys.stderr, flush=True)
        server.work_off(jobs, place, size, group=not alone, fresh=True)


def compared(place: Path, found: list[Case]) -> list[dict[str, Any]]:
    """Return the rows of the table: the differences of each training from its reference."""
    return [row(case, place / case.local, place / case.other, place / "data") for case in found]


def row(case: Case, local: Path, other: Path, data: Path) -> dict[str, Any]:
    """A row of the table."""
    from group import differences

    from shardlab.train.evaluation import evaluate_whole

    values = differences(local, other, case.reference, data)
    if case.label == TO_CPU:  # where each device has to evaluate what it trained
        sides = (case.run, local), (case.reference, other)
        losses = [evaluate_whole(run, data, folder / "model.safetensors").loss for run, folder in sides]
        values["test"] = abs(losses[0] / losses[1] - 1)
    made = {
        "workload": case.run.workload,
        "strategy": case.label,
        "ranks": case.run.world_size,
        "devices": case.run.devices_per_node,
        "arithmetic": case.arithmetic,
        **{name: values[name] for name in FIGURES},
    }
    return made | {"equal": "no" if outside(made) else "yes"}


def outside(row: dict[str, Any]) -> list[str]:
    """Return the values of a row that exceed their bounds, including NaN."""
    return [name for name, bound in BOUNDS[row["arithmetic"]].items() if not row[name] <= bound]


def judge(rows: list[dict[str, Any]]) -> None:
    """Check that all strategies are equal.

    Raises:
        UserError: one is not; names the first one.
    """
    for row in rows:
        for name in outside(row):
            raise UserError(
                f"{row['strategy']} x {row['workload']} in {row['arithmetic']} is not equal: its {FIGURES[name]} has a "
                f"relative difference of {row[name]:.1e}, and the bound is {BOUNDS[row['arithmetic']][name]:.0e}."
            )


if __name__ == "__main__":
    run_program(main)
