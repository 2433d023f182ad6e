"""Compare a run's final weights with those of `single`, one parameter at a time."""

import argparse
from pathlib import Path

import torch

from shardlab.files import sha256
from shardlab.models.weights_difference import count_rounded, fixed_weights, weights_difference
from shardlab.records.done import weights_digest
from shardlab.records.reports import WeightsReport
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import read_run


def main() -> None:
    """Compare and write weights.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--weights", type=Path, required=True, help="its model.safetensors")
    parser.add_argument("--single", type=Path, required=True, help="model.safetensors of `single`")
    parser.add_argument("--initial", type=Path, required=True, help="the weights that both started from")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    run = read_run(args.settings)
    precision = PRECISIONS[run.recipe.arithmetic]
    low = None if precision.is_full else getattr(torch, precision.dtype)
    report = WeightsReport(
        weights=weights_digest(args.weights),
        single_weights=weights_digest(args.single),
        initial_weights=sha256(args.initial),
        differences=weights_difference(args.weights, args.single),
        exact=fixed_weights(args.single, args.initial),
        **(count_rounded(args.weights, args.single, args.initial, low) if low else {}),
    )
    report.write(args.output)
    name = max(report.differences, key=lambda name: report.differences[name])
    print(f"{run.strategy} x {run.workload}: largest difference {report.differences[name]:.1e}, of {name}")
