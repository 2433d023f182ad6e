#!/usr/bin/env python3
"""Compare plans with published memory of others on GPUs.

Also compares the differences between rows. Needs no GPU, no network and no
data. Each rank is simulated in a separate process, as in shardlab plan. To
add a measurement, add a line to ``ROWS``.
"""

import argparse
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from shardlab.errors import run_program
from shardlab.files import write_text
from shardlab.settings import load, resolve
from shardlab.settings.types import Run

GIB = 2**30
WORKLOAD = "llama2"


class Source(NamedTuple):
    """A publication of measurements."""

    name: str
    url: str
    measured: str
    """Measured quantity: peak allocated or reserved memory, of which rank."""
    rank_0: bool = False
    """True if it is the first rank's memory, False if it is the fullest rank's."""


class Recipe(NamedTuple):
    """Settings that a publication's rows share."""

    source: Source
    recipe: dict[str, Any]
    """Keys of the workload's recipe."""
    length: int
    """Tokens of each sample that a rank has: a sample's length is this times the degree of cp."""
    accumulates_whole: bool = False
    """True if FSDP keeps whole gradients in float32 between micro-batches and reduces them once."""
    copies_embedding: bool = False
    """True if each tensor-parallel rank has the whole embedding."""


class Row(NamedTuple):
    """A published measurement and its settings here."""

    recipe: Recipe
    size: str
    strategy: str
    ranks: int
    micro_batch: int
    """Samples per data-parallel rank and forward pass."""
    gib: float
    """Published memory, in GiB."""
    compiled: bool = True
    """True if the published run used torch.compile, which plans leave out."""
    why: str = ""
    """Reason for a difference of more than 10 %."""


KEMPNER = Recipe(
    Source(
        "KempnerForge",
        "github.com/KempnerInstitute/KempnerForge/blob/main/benchmarks/mfu_scaling/mfu_scaling_2026-04-05.md",
        "allocated, rank 0",
        rank_0=True,
    ),
    {
        "dtype": "bfloat16",
        "precision": "full",
        "activation_checkpointing": "full",
        "gradient_accumulation_steps": 2,  # more take no more memory
    },
    length=4096,
    accumulates_whole=True,
    copies_embedding=True,
)
TORCHTITAN = Recipe(
    Source(
        "torchtitan",
        "github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md",
        "reserved, fullest rank",
    ),
    {"precision": "bf16", "activation_checkpointing": "alternate"},
    length=8192,
)
ROWS = [
    Row(KEMPNER, "8b", "single", 1, 2, 80.7, why="unknown"),
    Row(KEMPNER, "8b", "fsdp", 2, 2, 62.4),
    Row(KEMPNER, "8b", "fsdp", 4, 4, 61.1),
    Row(KEMPNER, "8b", "tp_sp", 2, 4, 57.8),
    Row(KEMPNER, "8b", "tp_sp", 4, 4, 39.4),
    Row(KEMPNER, "8b", "fsdp_tp_sp@tp=2", 4, 4, 45.9),
    Row(KEMPNER, "8b", "fsdp_tp_sp@tp=4", 8, 4, 32.7),
    Row(KEMPNER, "8b", "fsdp_tp_sp@tp=4", 16, 4, 29.4),
    Row(KEMPNER, "8b", "fsdp_tp_sp@tp=4", 32, 4, 27.6),
    Row(KEMPNER, "15b", "fsdp", 8, 4, 88.5, compiled=False),
    Row(KEMPNER, "15b", "fsdp_tp_sp@tp=4", 8, 4, 45.1),
    Row(KEMPNER, "15b", "fsdp_tp_sp@tp=4", 16, 4, 39.2),
    Row(KEMPNER, "15b", "fsdp_tp_sp@tp=4", 32, 4, 36.3),
    Row(KEMPNER, "71b", "fsdp_tp_sp@tp=4", 32, 2, 93.2),
    Row(TORCHTITAN, "8b", "fsdp", 8, 2, 82.4, compiled=False),
    Row(TORCHTITAN, "8b", "fsdp", 8, 2, 77.0),
    Row(TORCHTITAN, "8b", "fsdp", 128, 2, 67.0, compiled=False),
    Row(TORCHTITAN, "8b", "fsdp", 128, 2, 62.0),
]
"""Rows of one recipe and size stand next to each other: their differences are compared."""


def main() -> None:
    """Plan, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=sorted({row.size for row in ROWS}), help="sizes of the model")
    parser.add_argument("--cores", type=int, default=1, help="ranks to simulate at a time")
    parser.add_argument(
        "--output", type=Path, default=Path("results/benchmarks/published.csv"), help="CSV file to write"
    )
    args = parser.parse_args()
    started = time.perf_counter()
    rows = [row for row in ROWS if row.size in args.sizes]
    plans = planned(rows, args.cores)
    table = table_of(rows, plans)
    write_text(args.output, table.to_csv(index=False))
    print(table.to_markdown(index=False, floatfmt=".1f"), end="\n\n")
    print(differences(rows, table).to_markdown(index=False, floatfmt=".1f"), end="\n\n")
    used = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"{len(rows)} plans in {time.perf_counter() - started:.0f} s, {used // 1024} MiB per process at most")


def run_of(row: Row) -> Run:
    """Return the row's settings, resolved."""
    recipe = row.recipe.recipe
    micro_batches = recipe.get("gradient_accumulation_steps", 1)
    config = load.config(
        {
            "workloads": [WORKLOAD],
            "size": row.size,
            "ranks_per_node": row.ranks,
            "recipe": recipe | {"global_batch_size": row.ranks * row.micro_batch * micro_batches},
        }
    )
    run = resolve.run(config, row.strategy, WORKLOAD)
    batch = run.mesh.data_size * row.micro_batch * micro_batches
    length = row.recipe.length * run.mesh.parts("sequence")
    data = run.data.model_copy(update={"options": run.data.options | {"sequence_length": length}})
    return run.model_copy(update={"data": data, "recipe": run.recipe.model_copy(update={"global_batch_size": batch})})


def planned(rows: list[Row], cores: int) -> list[dict[str, Any]]:
    """Return the plan of each row; rows with the same settings share one."""
    from shardlab.plan.simulate import simulate
    from shardlab.records import plan

    runs = [run_of(row) for row in rows]
    distinct = {plan.cost(run): run for run in runs}
    estimates = {}
    for cost, estimate in zip(distinct, simulate([(run, None) for run in distinct.values()], cores), strict=True):
        estimates[cost] = estimate
        print(f"{len(estimates)} of {len(distinct)}", file=sys.stderr, flush=True)
    found = [estimates[plan.cost(run)] for run in runs]
    assert not any(isinstance(each, str) for each in found), found
    return found  # type: ignore[return-value]


def table_of(rows: list[Row], plans: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the table of published and planned memory."""
    return pd.DataFrame([compared(row, plan) for row, plan in zip(rows, plans, strict=True)])


def compared(row: Row, plan: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the table: published and planned GiB, and the plan with the known differences."""
    held = _of_rank(row, plan)
    peak = held["peak"] / GIB
    known = peak + sum(known_differences(row, plan).values())
    return {
        "source": row.recipe.source.name,
        "size": row.size,
        "strategy": row.strategy,
        "ranks": row.ranks,
        "compiled": "yes" if row.compiled else "no",
        "published": row.gib,
        "planned": peak,
        "error %": 100 * (peak / row.gib - 1),
        "with known differences": known,
        "their error %": 100 * (known / row.gib - 1),
        "why": row.why,
    }


def known_differences(row: Row, plan: dict[str, Any]) -> dict[str, float]:
    """Return what the published program holds and this one does not: {reason: GiB}."""
    run = run_of(row)
    held = _of_rank(row, plan)
    parts = run.mesh.parts("tensors")
    embedding = run.model.args["vocab_size"] * run.model.args["dim"]
    whole = (plan["parameters"] - embedding) / parts + embedding
    found = {}
    if row.recipe.copies_embedding and parts > 1:
        copies = embedding * (1 - 1 / parts) / run.mesh.parts("states")
        found["whole embedding and its states"] = 3 * 2 * copies / GIB
    if row.recipe.accumulates_whole and row.strategy != "single":
        found["whole gradients in float32"] = (4 * whole - held["at_peak"]["gradients"]) / GIB
    return found


def _of_rank(row: Row, plan: dict[str, Any]) -> dict[str, Any]:
    ranks: list[dict[str, Any]] = plan["tensor_bytes"]
    return ranks[0] if row.recipe.source.rank_0 else max(ranks, key=lambda rank: int(rank["peak"]))


def differences(rows: list[Row], table: pd.DataFrame) -> pd.DataFrame:
    """Return published and planned differences between neighboring rows with the same activations per token."""
    found = []
    lines = table.to_dict("records")
    for (first, before), (second, after) in pairwise(zip(rows, lines, strict=True)):
        if (first.recipe, first.size) != (second.recipe, second.size):
            continue
        found.append(
            {
                "source": before["source"],
                "size": first.size,
                "from": _text(first),
                "to": _text(second),
                "published": after["published"] - before["published"],
                "planned": after["planned"] - before["planned"],
                "with known differences": after["with known differences"] - before["with known differences"],
            }
        )
    return pd.DataFrame(found)


def _text(row: Row) -> str:
    return f"{row.strategy}, {row.ranks} ranks, {row.micro_batch} samples" + (", compiled" if row.compiled else "")


if __name__ == "__main__":
    run_program(main)
