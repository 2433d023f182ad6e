"""Compute test loss and metric of plain weights, and of their averages if the recipe has any, each test sample once.

On one device, with the same code for every strategy; or sharded, under the run's own strategy, for models that do not
fit one device (recipe.evaluation).
"""

import argparse
from pathlib import Path

from shardlab.data import store
from shardlab.errors import remedy
from shardlab.records.done import AVERAGED, weights_digest
from shardlab.records.reports import InitialReport, TestReport
from shardlab.runtime import distributed
from shardlab.settings import code_fingerprint, run_identity
from shardlab.settings.types import read_run
from shardlab.train.evaluation import evaluate, evaluate_average


def main() -> None:
    """Evaluate and write test.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="safetensors file to evaluate")
    parser.add_argument("--initial", type=Path, help="report of the initial weights, for untrained_loss")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()

    run = read_run(args.settings)
    fingerprint = store.fingerprint_of(args.data)
    initial = None
    if args.initial:
        initial = InitialReport.read(args.initial, remedy("recreate it", args.initial, "-f"))
    distributed.start(run.site, run.site.hang_seconds)
    digest = weights_digest(args.weights, initial) if distributed.is_main() else ""
    if distributed.is_main() and run.recipe.ema_decay is not None:
        weights_digest(args.weights.with_name(AVERAGED))
    result = evaluate(run, args.data, args.weights)
    average = evaluate_average(run, args.data, args.weights)
    code_fingerprint.check_unchanged(run.sources, run.model.sources)
    if distributed.is_main():
        report = TestReport(
            **result.model_dump(),
            untrained_loss=initial and initial.loss,
            ema_loss=average and average.loss,
            ema_metric_value=average and average.metric_value,
            identity=run_identity.identity_of(run, fingerprint),
            weights=digest,
        )
        report.write(args.output)
        metric = "" if report.metric_value is None else f"  {report.metric_name} {report.metric_value:.6g}"
        of_average = "" if report.ema_loss is None else f"  test loss of the averaged weights {report.ema_loss:.6g}"
        print(f"test loss {report.loss:.6g}{metric}{of_average}  samples {report.samples}")
    distributed.finish()
