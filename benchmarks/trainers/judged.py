"""Judged rows of one workload's trainings, without the workflow."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from shardlab.records.reports import FirstStep, TrainReport
from shardlab.report.summary import COLUMNS, compare_first_steps, compared, farthest_weight, rounded_weights
from shardlab.report.verdict import DIFFERENCES, EQUAL, LOW_MULTIPLE, ROUNDING
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run


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


def _row(
    single: Run, place: Path, name: str, reports: dict[str, TrainReport], twins: list[list[FirstStep]]
) -> dict[str, Any]:
    from shardlab.train.evaluation import evaluate_sharded

    report = reports[name]
    loss = evaluate_sharded(single, place / "data", place / name / "model.safetensors").loss
    losses = {"test_loss": loss, "validation_loss": report.validation_loss, "learned_nothing": report.learned_nothing}
    beginning = compare_first_steps(single, report.first_steps, reports["single"].first_steps, twins)
    return {"strategy": name, "workload": single.workload, "status": "done", **losses, **beginning}


def cell(row: dict[Any, Any]) -> str:
    """Return where the verdict detects it, and the difference there."""
    end = max(row[each] for each in DIFFERENCES if not pd.isna(row[each]))
    if row["equality"] in (EQUAL, ROUNDING):
        return f"- ({max(row['first_rel_diff'], end):.0e})"
    if row["first_rel_diff"] > row["first_tolerance"]:
        return f"start {row['first_rel_diff']:.0e}"
    if not pd.isna(row["rounded_weights"]):
        return f"values {max(row['first_rel_diff'], end):.0e}"
    if pd.isna(row["tolerance"]) and end <= LOW_MULTIPLE * row["noise_floor"]:
        return f"weights {row['weights_rel_diff']:.0e}"
    return f"end {end:.0e}"
