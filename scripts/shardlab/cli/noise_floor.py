"""Train twins of `single`: the same run, its initial weights perturbed by about one rounding error. Their distance from
it is the rounding noise, whatever the strategy. In low precision, one more is trained in full precision.
"""

import tempfile
from pathlib import Path
from typing import Annotated

from shardlab.cli import at_least, program
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


@program
def main(
    settings: Path,
    data: Path,
    weights: Path,
    single: Path,
    output: Path,
    draws: Annotated[int, at_least(1), "number of twins"],
) -> None:
    """Draw, train and evaluate each twin, and write the report."""
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
