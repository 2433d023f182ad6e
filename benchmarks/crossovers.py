#!/usr/bin/env python3
"""Compare context with tensor parallelism over lengths of a sequence, and expert
parallelism with FSDP over numbers of experts.

Measured: two ranks of this machine, strategies in turn, medians. Expected: the
bytes that a rank sends per step with models of the size for GPUs, as planned,
which are the same on any hardware. Needs no GPU and no data.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.places import run_of, train, write  # type: ignore[import-not-found]
from trainers.table import show  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program
from shardlab.files import read_json
from shardlab.plan.simulate import simulate
from shardlab.settings import load, resolve
from shardlab.settings.types import Run

STEPS = 8
RANKS = 8
"""Ranks of the large models."""
VOCABULARY = 512
DECODER = {"dim": 128, "layers": 4, "heads": 8, "kv_heads": 4, "hidden": 352, "vocab_size": VOCABULARY}
MIXTURE = DECODER | {"hidden": 128, "top_k": 2}


class Question(NamedTuple):
    """Strategies, and what decides between them."""

    workload: str
    varied: str
    """Varied quantity: the header of the first column."""
    measured: tuple[str, ...]
    """Strategies on two ranks of this machine."""
    values: tuple[int, ...]
    """Values measured: tokens of the only sample, or experts."""
    size: str
    """Size of the model whose traffic is computed."""
    expected: tuple[str, ...]
    """Strategies on RANKS ranks whose traffic is computed."""
    tokens: tuple[int, ...]
    """Tokens of each of their samples."""
    batch: int
    """Samples of their step."""


QUESTIONS = {
    "context": Question(
        "llama2",
        "tokens",
        ("tp_sp", "cp"),
        (128, 256, 512, 1024, 2048, 4096),
        "7b",
        ("tp_sp", "cp", "cp_ulysses"),
        (8192, 16384, 32768, 65536, 131072),
        batch=1,
    ),
    "experts": Question(
        "moe",
        "experts",
        ("fsdp", "ep"),
        (2, 8, 32),
        "30b_a3b",
        ("fsdp", "fsdp_ep@ep=8"),
        (1024, 4096, 8192, 16384, 32768, 65536),
        batch=RANKS,
    ),
}


def main() -> None:
    """Measure and compute, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=[*QUESTIONS])
    parser.add_argument("--parts", nargs="+", choices=["measured", "expected"], default=["measured", "expected"])
    parser.add_argument("--repeats", type=int, default=3, help="trainings of each cell, of which the median counts")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks"), help="folder of the CSV files")
    args = parser.parse_args()
    for name in args.questions:
        question = QUESTIONS[name]
        if "measured" in args.parts:
            table = pd.DataFrame([measured(question, value, args.repeats) for value in question.values])
            show(table, args.output / f"crossover_{name}_measured.csv", ".4g")
        if "expected" in args.parts:
            show(pd.DataFrame(expected(question)), args.output / f"crossover_{name}_expected.csv", ".3g")


def measured(question: Question, value: int, repeats: int) -> dict[str, Any]:
    """Return a row: the median step and the bytes sent of each strategy, which take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in question.measured}
    sent = {}
    for _ in range(repeats):
        for name in question.measured:
            report = trained(question.workload, name, value)
            seconds[name].append(report["step_seconds_median"])
            sent[name] = report["bytes_per_step"] / 2**20
    row = {question.varied: value} | {f"{name}, ms": 1000 * statistics.median(seconds[name]) for name in seconds}
    return row | {f"{name}, MiB": sent[name] for name in sent}


def trained(workload: str, strategy: str, value: int) -> dict[str, Any]:
    """Return the report of a training on two ranks: of one sample, or of eight of 128 tokens with that many experts."""
    samples, length = (1, value) if workload == "llama2" else (8, 128)
    model = DECODER if workload == "llama2" else MIXTURE | {"experts": value}
    recipe = {"global_batch_size": samples, "eval_batch_size": samples, "max_steps": STEPS}
    run = run_of(strategy, workload, model, {"sequence_length": length}, recipe, ranks_per_node=2)
    draw = np.random.default_rng(0)

    def tokens(rows: int) -> dict[str, Any]:
        return {"tokens": draw.integers(0, VOCABULARY, (rows, length + 1), dtype=np.int32)}

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        write(place, run, tokens)
        done = train(place, run)
        if done.returncode:
            raise UserError(f"{strategy} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        report: dict[str, Any] = read_json(place / "train.json", "report of the run", "train again")
    return report


def expected(question: Question) -> list[dict[str, Any]]:
    """Return a row per length of the samples: GiB that a rank sends per step under each strategy, as planned.

    Raises:
        UserError: a run cannot be planned.
    """
    runs = [(large_run(question, name, tokens), None) for tokens in question.tokens for name in question.expected]
    estimates = simulate(runs, len(os.sched_getaffinity(0)))
    rows = []
    for tokens in question.tokens:
        row: dict[str, Any] = {"tokens per sample": f"{tokens // 1024}k"}
        for name in question.expected:
            estimate = next(estimates)
            if isinstance(estimate, str):
                raise UserError(f"{name}: {estimate}.")
            row[f"{name}, GiB"] = sum(entry["bytes"] for entry in estimate["traffic"]) / 2**30
        rows.append(row)
    return rows


def large_run(question: Question, strategy: str, tokens: int) -> Run:
    """Return the settings of a step in bfloat16 without recomputation, on RANKS ranks, with samples of that length."""
    recipe = {
        "dtype": "bfloat16",
        "precision": "full",
        "activation_checkpointing": "none",
        "global_batch_size": RANKS,  # as few samples as FSDP has ranks
    }
    config = {"workloads": [question.workload], "size": question.size, "ranks_per_node": RANKS, "recipe": recipe}
    run = resolve.run(load.config(config), strategy, question.workload)
    data = run.data.model_copy(update={"options": run.data.options | {"sequence_length": tokens}})
    recipes = run.recipe.model_copy(update={"global_batch_size": question.batch})
    return run.model_copy(update={"data": data, "recipe": recipes})


if __name__ == "__main__":
    run_program(main)
