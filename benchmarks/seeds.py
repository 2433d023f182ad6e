#!/usr/bin/env python3
"""Train workloads with many seeds under several strategies, with twins, and judge
each as the summary does.

Prints the table of docs/equality.md. Ranks are forks of one process
(tests/parity/ranks.py), so that a training costs its steps and not PyTorch's
start.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/parity"))

from trainers.judged import configured, prepare, rows, twins  # type: ignore[import-not-found]

from shardlab.errors import run_program
from shardlab.files import write_text
from shardlab.report.verdict import DIFFERENCES, EQUAL, ROUNDING, UNEQUAL, judge
from shardlab.settings import resolve
from shardlab.settings.config import Config
from shardlab.settings.precisions import LOW, STATES
from shardlab.settings.types import Run


def main() -> None:
    """Train, judge, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12, help="seeds 1 to this")
    parser.add_argument("--workloads", nargs="+", default=["mlp", "mnist", "xsum", "vit", "llama2", "moe"])
    parser.add_argument("--strategies", nargs="+", default=["ddp", "fsdp", "tp", "pp", "zero2"], help="of two ranks")
    parser.add_argument("--twins", type=int, default=Config().noise_floor_runs, help="twins of each single")
    parser.add_argument(
        "--precision", choices=[*STATES, *LOW], default="float32", help="dtype, or what layers compute in"
    )
    parser.add_argument("--output", type=Path, default=Path("results/seeds.csv"), help="CSV file of every training")
    args = parser.parse_args()
    from group import Server  # type: ignore[import-not-found]

    with Server() as server:
        tables = []
        for seed in range(1, args.seeds + 1):
            config = configured(args.precision, seed=seed)
            for workload in args.workloads:
                with tempfile.TemporaryDirectory() as place:
                    tables.append(trained(server, config, workload, args.strategies, args.twins, Path(place)))
                table = pd.concat(tables, ignore_index=True)
                write_text(args.output, table.to_csv(index=False))
    print(shown(table))


def trained(
    server: Any, config: Config, workload: str, strategies: list[str], number: int, place: Path
) -> pd.DataFrame:
    """Return judged rows of one workload with one seed: ``single``, the strategies, and the twins in separate rows."""
    from group import job

    single = resolve.run(config, "single", workload)
    prepare(single, place)
    runs = {name: resolve.run(config, name, workload) for name in strategies}

    def requested(name: str, run: Run, weights: Path) -> Any:
        return job(run, place / "data", weights, place / name)

    perturbed = twins(single, place, number)
    alone = [requested("single", single, place / "initial")]
    alone += [requested(name, *twin) for name, twin in perturbed.items()]
    server.work_off(alone, place, 1)
    server.work_off([requested(name, run, place / "initial") for name, run in runs.items()], place, 2)
    table = rows(single, place, ["single", *runs, *perturbed])
    columns = ["strategy", "workload", "test_loss", "first_rel_diff", "first_tolerance", *DIFFERENCES, "noise_floor"]
    columns += ["weights_rel_diff", "weights_noise_floor", "weights_tolerance", "weights_parameter", "equality"]
    return judge(table)[columns].assign(seed=config.seed)


def shown(table: pd.DataFrame) -> str:
    """Return one row per workload: number of runs by verdict, and the distances of runs and twins from ``single``."""
    runs = table[(table.strategy != "single") & ~table.strategy.str.startswith("twin")]
    lines = []
    for workload, part in runs.groupby("workload", sort=False):
        counts = {name: int((part.equality == name).sum()) for name in (EQUAL, ROUNDING, UNEQUAL)}
        farthest = {"farthest run": part[[*DIFFERENCES]].max().max(), "farthest twin": part.noise_floor.max()}
        farthest["farthest weight, in tolerances"] = (part.weights_rel_diff / part.weights_tolerance).max()
        lines.append({"workload": workload, "runs": len(part), **counts, **farthest})
    return str(pd.DataFrame(lines).to_markdown(index=False, floatfmt=".0e"))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    run_program(main)
