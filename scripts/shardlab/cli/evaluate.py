"""Compute test loss and metric of plain weights, and of their averages if the recipe has any, each test sample once.

On one device, with the same code for every strategy; or sharded, under the run's own strategy, for models that do not
fit one device (recipe.evaluation).
"""

import tempfile
from pathlib import Path

import torch

from shardlab.cli import program
from shardlab.data import store
from shardlab.errors import remedy
from shardlab.files import sha256
from shardlab.models.weights_difference import count_rounded, fixed_weights, weights_difference
from shardlab.records.done import AVERAGED, weights_digest
from shardlab.records.reports import (
    InitialReport,
    NoiseFloorReport,
    TestReport,
    TrainReport,
    Twin,
    WeightsReport,
    initial_digest,
)
from shardlab.runtime import distributed
from shardlab.settings import code_fingerprint, run_identity
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run, read_run
from shardlab.train.evaluation import evaluate, evaluate_average
from shardlab.train.loop import train
from shardlab.train.perturbed import move


@program
def main(settings: Path, data: Path, weights: Path, output: Path, initial: Path | None = None) -> None:
    """Evaluate and write test.json."""
    run = read_run(settings)
    fingerprint = store.fingerprint_of(data)
    drawn = InitialReport.read(initial, remedy("recreate it", initial, "-f")) if initial else None
    distributed.start(run.site, run.site.hang_seconds)
    digest = weights_digest(weights, drawn) if distributed.is_main() else ""
    if distributed.is_main() and run.recipe.ema_decay is not None:
        weights_digest(weights.with_name(AVERAGED))
    result = evaluate(run, data, weights)
    average = evaluate_average(run, data, weights)
    code_fingerprint.check_unchanged(run.sources, run.model.sources)
    if distributed.is_main():
        report = TestReport(
            **result.model_dump(),
            untrained_loss=drawn and drawn.loss,
            ema_loss=average and average.loss,
            ema_metric_value=average and average.metric_value,
            identity=run_identity.identity_of(run, fingerprint),
            weights=digest,
        )
        report.write(output)
        metric = "" if report.metric_value is None else f"  {report.metric_name} {report.metric_value:.6g}"
        of_average = "" if report.ema_loss is None else f"  test loss of the averaged weights {report.ema_loss:.6g}"
        print(f"test loss {report.loss:.6g}{metric}{of_average}  samples {report.samples}")
    distributed.finish()


@program
def compare(settings: Path, weights: Path, single: Path, initial: Path, output: Path) -> None:
    """Compare a run's final weights with those of `single`, one parameter at a time."""
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


@program
def noise_floor(
    settings: Path,
    data: Path,
    weights: Path,
    single: Path,
    output: Path,
    draws: int,
) -> None:
    """Train twins of `single`: the same run, its initial weights perturbed by about one rounding error. Their distance
    from it is the rounding noise, whatever the strategy. In low precision, one more is trained in full precision.
    """
    run = read_run(settings)
    fingerprint = store.fingerprint_of(data)
    initial_weights = initial_digest(weights)
    distributed.start(run.site)
    single_weights = weights_digest(single)
    twins = []
    for number in range(draws):
        with tempfile.TemporaryDirectory() as place:
            moved = Path(place) / "initial.safetensors"
            move(run, weights, number, moved)
            twins.append(twin(run, data, moved, single))
    exact = None
    if run.recipe.precision != "full":
        recipe = run.recipe.model_copy(update={"precision": "full"})
        exact = twin(run.model_copy(update={"recipe": recipe}), data, weights, single)
    code_fingerprint.check_unchanged(run.sources, run.model.sources)
    report = NoiseFloorReport(
        identity=run_identity.identity_of(run, fingerprint),
        initial_weights=initial_weights,
        workload=run.workload,
        single_weights=single_weights,
        scale=PRECISIONS[run.recipe.arithmetic].rounding,
        twins=twins,
        full_precision=exact,
    )
    report.write(output)


def twin(run: Run, data: Path, initial: Path, single: Path) -> Twin:
    """Train ``run`` from these weights; compare the final ones with those of ``single``."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        train(run, data, initial, folder, {})
        report = TrainReport.read(folder / "train.json", "train again")
        result = evaluate(run, data, folder / "model.safetensors")
        average = evaluate_average(run, data, folder / "model.safetensors")
        differences = weights_difference(folder / "model.safetensors", single)
    return Twin(
        validation_loss=report.validation_loss,
        test_loss=result.loss,
        ema_loss=average and average.loss,
        expert_choices=result.expert_choices,
        first_steps=report.first_steps,
        weights=differences,
    )
