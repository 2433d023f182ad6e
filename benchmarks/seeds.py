#!/usr/bin/env python3
"""Train workloads with many seeds under several strategies, with twins, and judge each as the summary does.

Prints the table of docs/equality.md. Ranks are forks of one process (tests/parity/ranks.py), so that a training costs
its steps and not PyTorch's start.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/parity"))

from shardlab.errors import run_program
from shardlab.files import write_text
from shardlab.report.records import TrainReport
from shardlab.report.summary import COLUMNS, compare_first_steps, compared
from shardlab.report.verdict import DIFFERENCES, EQUAL, ROUNDING, TOLERANCES, UNEQUAL, judge
from shardlab.settings import load, resolve
from shardlab.settings.config import Config
from shardlab.settings.types import Run


def main() -> None:
    """Train, judge, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12, help="seeds 1 to this")
    parser.add_argument("--workloads", nargs="+", default=["mlp", "mnist", "xsum", "vit", "llama2"])
    parser.add_argument("--strategies", nargs="+", default=["ddp", "fsdp", "tp", "pp", "zero2"], help="of two ranks")
    parser.add_argument("--twins", type=int, default=Config().twins, help="twins of each single")
    parser.add_argument("--dtype", choices=TOLERANCES, default="float32")
    parser.add_argument("--output", type=Path, default=Path("results/seeds.csv"), help="CSV file of every training")
    args = parser.parse_args()
    from group import Server  # type: ignore[import-not-found]

    server = Server()
    try:
        rows = []
        for seed in range(1, args.seeds + 1):
            config = load.config({"seed": seed, "dtype": args.dtype})
            for workload in args.workloads:
                with tempfile.TemporaryDirectory() as place:
                    rows.append(trained(server, config, workload, args.strategies, args.twins, Path(place)))
                table = pd.concat(rows, ignore_index=True)
                write_text(args.output, table.to_csv(index=False))
    finally:
        server.stop()
    print(shown(table))


def trained(server: Any, config: Config, workload: str, strategies: list[str], twins: int, place: Path) -> pd.DataFrame:
    """Judged rows of one workload with one seed: ``single``, the strategies, and the twins as rows of their own."""
    from group import job

    from helpers.common import save_initial  # type: ignore[import-not-found]
    from shardlab import data as data_sets
    from shardlab.data import store
    from shardlab.data.encoders import encode

    single = resolve.run(config, "single", workload)
    store.write(place / "data", single.data, *encode(single.data, data_sets.read(single.data, place)))
    save_initial(single, place / "initial")
    runs = {"single": single} | {name: resolve.run(config, name, workload) for name in strategies}

    def asked(name: str, weights: Path) -> Any:
        return job(runs.get(name, single), place / "data", weights, place / name)

    alone = [asked("single", place / "initial")]
    alone += [asked(f"twin{number}", moved(single, place, number)) for number in range(twins)]
    server.work_off(alone, place, 1)
    server.work_off([asked(name, place / "initial") for name in strategies], place, 2)
    names = [*runs, *(f"twin{number}" for number in range(twins))]
    table = pd.DataFrame([row(single, place, name) for name in names], columns=COLUMNS)
    table = compared(table.convert_dtypes())
    of_twins = table[table.strategy.str.startswith("twin")]
    table["spread"] = of_twins[[*DIFFERENCES]].max().max()
    columns = ["strategy", "workload", "test_loss", "first_rel_diff", *DIFFERENCES, "spread", "equality"]
    return judge(table)[columns].assign(seed=config.seed)


def moved(run: Run, place: Path, number: int) -> Path:
    """File with the initial weights of a twin."""
    import twins

    path = place / f"initial{number}"
    twins.move(run, place / "initial", number, path)
    return path


def row(single: Run, place: Path, name: str) -> dict[str, Any]:
    """Losses of a training, under its name."""
    from evaluate import evaluate_sharded

    report = TrainReport.read(place / name / "train.json", "train again")
    loss = evaluate_sharded(single, place / "data", place / name / "model.safetensors").loss
    losses = {"test_loss": loss, "validation_loss": report.validation_loss, "learned_nothing": report.learned_nothing}
    beginning = compare_first_steps(single, report, TrainReport.read(place / "single/train.json", "train again"))
    return {"strategy": name, "workload": single.workload, "status": "done", **losses, **beginning}


def shown(table: pd.DataFrame) -> str:
    """One row per workload: how many runs are what, how far runs and twins were from ``single``."""
    runs = table[(table.strategy != "single") & ~table.strategy.str.startswith("twin")]
    rows = []
    for workload, part in runs.groupby("workload", sort=False):
        counts = {name: int((part.equality == name).sum()) for name in (EQUAL, ROUNDING, UNEQUAL)}
        farthest = {"first steps": part.first_rel_diff.max()}
        farthest |= {"farthest run": part[[*DIFFERENCES]].max().max(), "farthest twin": part.spread.max()}
        rows.append({"workload": workload, "runs": len(part), **counts, **farthest})
    return str(pd.DataFrame(rows).to_markdown(index=False, floatfmt=".0e"))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    run_program(main)
