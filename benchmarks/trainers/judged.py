"""Training files and judged rows of one workload, without the workflow."""

import sys
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from shardlab.records.reports import TrainReport
from shardlab.report.summary import COLUMNS, compare_first_steps, compared, farthest_weight
from shardlab.settings.types import Run


def prepare(run: Run, place: Path) -> None:
    """Write the prepared data of a run to ``place/data`` and its initial weights to ``place/initial``."""
    from helpers.common import save_initial  # type: ignore[import-not-found]
    from shardlab import data as data_sets
    from shardlab.data import store
    from shardlab.data.encoders import encode

    store.write(place / "data", run.data, *encode(run.data, data_sets.read(run.data, place)))
    save_initial(run, place / "initial")


def rows(single: Run, place: Path, names: list[str]) -> pd.DataFrame:
    """Return one row per finished training in ``place/NAME``, compared with ``place/single``; NAME is its strategy.

    Those named twin0, twin1, ... are the twins; each weight of the others is compared with the farthest of them.
    """
    from shardlab.models.weights_difference import fixed_weights, weights_difference

    files = {name: place / name / "model.safetensors" for name in names}
    weights = {name: weights_difference(path, files["single"]) for name, path in files.items()}
    of_twins = [differences for name, differences in weights.items() if name.startswith("twin")]
    twins = {name: max(each[name] for each in of_twins) for name in weights["single"]} if of_twins else {}
    exact = fixed_weights(files["single"], place / "initial")
    found = [_row(single, place, name) for name in names]
    found = [row | farthest_weight(weights[row["strategy"]], exact, twins, row["tolerance"]) for row in found]
    return compared(pd.DataFrame(found, columns=COLUMNS).convert_dtypes())


def _row(single: Run, place: Path, name: str) -> dict[str, Any]:
    from shardlab.train.evaluation import evaluate_sharded

    report = TrainReport.read(place / name / "train.json", "train again")
    loss = evaluate_sharded(single, place / "data", place / name / "model.safetensors").loss
    losses = {"test_loss": loss, "validation_loss": report.validation_loss, "learned_nothing": report.learned_nothing}
    beginning = compare_first_steps(single, report, TrainReport.read(place / "single/train.json", "train again"))
    return {"strategy": name, "workload": single.workload, "status": "done", **losses, **beginning}
