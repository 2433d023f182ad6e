#!/usr/bin/env python3
"""Draw the initial weights of a workload, once, from one seed on one device: every strategy loads them.

Their test loss is the baseline of a training.
"""

import argparse
from pathlib import Path

import torch

from shardlab import models
from shardlab.data import store
from shardlab.errors import run_program
from shardlab.models.weights import save
from shardlab.records.reports import InitialReport
from shardlab.settings import code_fingerprint, run_identity
from shardlab.settings.types import read_run
from shardlab.training import distributed, evaluation, tasks


def main() -> None:
    """Build the model, save its weights and, if a report is requested, write their results on the test split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of any run of the workload")
    parser.add_argument("--output", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--report", type=Path, help="JSON file to write with their test loss; needs --data")
    parser.add_argument("--data", type=Path, help="folder of the prepared data set")
    args = parser.parse_args()
    if args.report and not args.data:
        parser.error("--report needs --data")
    run = read_run(args.settings)
    distributed.start(run.site.device)
    dtype = getattr(torch, run.recipe.dtype)
    model = models.build(run.model, run.task, dtype)
    models.check_plan(run.model, model)
    tasks.check_loss(run, model)
    code_fingerprint.check_imported(run.sources, run.model.sources)
    digest = save(models.initial_weights(run.model, run.task, dtype, run.seed), models.state(model), args.output)
    parameters = models.parameter_count(model)
    print(f"{parameters:,} parameters, seed {run.seed}")
    if not args.report:
        return
    report = InitialReport(
        identity=run_identity.identity_of(run, store.fingerprint_of(args.data)),
        weights=digest,
        parameters=parameters,
        loss=None if run.evaluated_sharded else evaluation.evaluate(run, args.data, args.output).loss,
    )
    report.write(args.report)
    print(f"test loss {report.loss}")


if __name__ == "__main__":
    run_program(main)
