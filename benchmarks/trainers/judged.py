"""Training files and judged rows of one workload, without the workflow."""

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from shardlab.records.reports import FirstStep, TrainReport
from shardlab.report.summary import COLUMNS, compare_first_steps, compared, farthest_weight, rounded_weights
from shardlab.report.verdict import DIFFERENCES
from shardlab.settings import load
from shardlab.settings.config import Config
from shardlab.settings.precisions import PRECISIONS, STATES
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

    Those whose name begins with twin are the twins; each quantity of the others is compared with the farthest of them.
    """
    from shardlab.models.weights_difference import count_rounded, fixed_weights, weights_difference

    files = {name: place / name / "model.safetensors" for name in names}
    weights = {name: weights_difference(path, files["single"]) for name, path in files.items()}
    of_twins = [differences for name, differences in weights.items() if name.startswith("twin")]
    twins = {name: max(each[name] for each in of_twins) for name in weights["single"]} if of_twins else {}
    exact = fixed_weights(files["single"], place / "initial")
    reports = {name: TrainReport.read(place / name / "train.json", "train again") for name in names}
    steps = [report.first_steps for name, report in reports.items() if name.startswith("twin")]
    found = [_row(single, place, name, reports, steps) for name in names]
    found = [row | farthest_weight(weights[row["strategy"]], exact, twins, row["tolerance"]) for row in found]
    if not PRECISIONS[single.recipe.arithmetic].is_full:
        low = getattr(torch, PRECISIONS[single.recipe.arithmetic].dtype)
        for row in found:
            counts = count_rounded(files[row["strategy"]], files["single"], place / "initial", low)
            row["rounded_weights"] = rounded_weights(single, *counts.values())
    table = compared(pd.DataFrame(found, columns=COLUMNS).convert_dtypes())
    if twins:
        table["noise_floor"] = table.loc[table.strategy.str.startswith("twin"), [*DIFFERENCES]].max().max()
    return table


def configured(precision: str, **values: Any) -> Config:
    """Return the configuration in which dtype, or the precision that layers compute in, is this one."""
    return load.config(values | ({"dtype": precision} if precision in STATES else {"recipe": {"precision": precision}}))


def twins(single: Run, place: Path, number: int) -> dict[str, tuple[Run, Path]]:
    """Return the twins of ``single``: name, run and initial weights; in low precision also ``single`` in full."""
    from shardlab.train.perturbed import move

    found = {}
    for draw in range(number):
        found[f"twin{draw}"] = single, place / f"initial{draw}"
        move(single, place / "initial", draw, place / f"initial{draw}")
    if number and single.recipe.precision != "full":
        recipe = single.recipe.model_copy(update={"precision": "full"})
        found["twin in full precision"] = single.model_copy(update={"recipe": recipe}), place / "initial"
    return found


def _row(
    single: Run, place: Path, name: str, reports: dict[str, TrainReport], twins: list[list[FirstStep]]
) -> dict[str, Any]:
    from shardlab.train.evaluation import evaluate_sharded

    report = reports[name]
    loss = evaluate_sharded(single, place / "data", place / name / "model.safetensors").loss
    losses = {"test_loss": loss, "validation_loss": report.validation_loss, "learned_nothing": report.learned_nothing}
    beginning = compare_first_steps(single, report.first_steps, reports["single"].first_steps, twins)
    return {"strategy": name, "workload": single.workload, "status": "done", **losses, **beginning}
