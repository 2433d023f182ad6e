"""Compare a run's final weights with those of `single`, one parameter at a time."""

from pathlib import Path

import torch

from shardlab.cli import program
from shardlab.files import sha256
from shardlab.models.weights_difference import count_rounded, fixed_weights, weights_difference
from shardlab.records.done import weights_digest
from shardlab.records.reports import WeightsReport
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import read_run


@program
def main(settings: Path, weights: Path, single: Path, initial: Path, output: Path) -> None:
    """Compare and write weights.json."""
    run = read_run(settings)
    precision = PRECISIONS[run.recipe.arithmetic]
    low = None if precision.is_full else getattr(torch, precision.dtype)
    report = WeightsReport(
        weights=weights_digest(weights),
        single_weights=weights_digest(single),
        initial_weights=sha256(initial),
        differences=weights_difference(weights, single),
        exact=fixed_weights(single, initial),
        **(count_rounded(weights, single, initial, low) if low else {}),
    )
    report.write(output)
    name = max(report.differences, key=lambda name: report.differences[name])
    print(f"{run.strategy} x {run.workload}: largest difference {report.differences[name]:.1e}, of {name}")
