"""Train twins of `single`: the same run, its initial weights perturbed by about one rounding error. Their distance from
it is the rounding noise, whatever the strategy. In low precision, one more is trained in full precision.
"""

import argparse
import tempfile
from pathlib import Path

from shardlab.cli import at_least
from shardlab.data import store
from shardlab.models.weights_difference import weights_difference
from shardlab.records.done import weights_digest
from shardlab.records.reports import NoiseFloorReport, TrainReport, Twin, initial_digest
from shardlab.runtime import distributed
from shardlab.settings import code_fingerprint, run_identity
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run, read_run
from shardlab.train.evaluation import evaluate, evaluate_average
from shardlab.train.loop import train
from shardlab.train.perturbed import move


def main() -> None:
    """Draw, train and evaluate each twin, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of `single`")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="its initial weights")
    parser.add_argument("--single", type=Path, required=True, help="its final weights")
    parser.add_argument("--draws", type=at_least(1), required=True, help="number of twins")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    run = read_run(args.settings)
    fingerprint = store.fingerprint_of(args.data)
    initial_weights = initial_digest(args.weights)
    distributed.start(run.site)
    single_weights = weights_digest(args.single)
    twins = [moved_twin(run, args.data, args.weights, args.single, number) for number in range(args.draws)]
    exact = None
    if run.recipe.precision != "full":
        recipe = run.recipe.model_copy(update={"precision": "full"})
        exact = twin(run.model_copy(update={"recipe": recipe}), args.data, args.weights, args.single)
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
    report.write(args.output)


def moved_twin(run: Run, data: Path, initial: Path, single: Path, number: int) -> Twin:
    """Train the twin with this number, from initial weights that are moved by one rounding."""
    with tempfile.TemporaryDirectory() as place:
        moved = Path(place) / "initial.safetensors"
        move(run, initial, number, moved)
        return twin(run, data, moved, single)


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
