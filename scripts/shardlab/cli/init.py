"""Draw the initial weights of a workload, once, from one seed on one device: every strategy loads them.

Their test loss is the baseline of a training. What the model contains is checked against the strategies.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from shardlab import models
from shardlab.data import store
from shardlab.models import contents
from shardlab.models.declared import completed
from shardlab.models.weights import materialize, save
from shardlab.records.reports import InitialReport
from shardlab.runtime import distributed, optimizers, tasks, trial
from shardlab.runtime.device import device_for_rank
from shardlab.settings import code_fingerprint, run_identity
from shardlab.settings.model_rules import RULES
from shardlab.settings.types import Run, read_run
from shardlab.train import evaluation


def main() -> None:
    """Build the model, save its weights and, if a report is requested, write their results on the test split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of any run of the workload")
    parser.add_argument("--output", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--report", type=Path, help="JSON file to write with their test loss; needs --data")
    parser.add_argument("--data", type=Path, help="folder of the prepared data set")
    parser.add_argument(
        "--strategies", type=json.loads, default={}, help="JSON of settings/model_rules.py: what will train"
    )
    args = parser.parse_args()
    if args.report and not args.data:
        parser.error("--report needs --data")
    run = read_run(args.settings)
    distributed.start(run.site)
    dtype = getattr(torch, run.recipe.dtype)
    model = models.build(run.model, run.task, dtype)
    complete = completed(run, model)
    models.check_plan(complete.model, model)
    optimizers.own_settings(run.recipe, model, complete.model.experts)  # checks patterns
    tasks.check_model(run, model)
    code_fingerprint.check_unchanged(run.sources, run.model.sources)
    runs = [completed(each, model) for each in _runs(complete, args.strategies)]
    notes = contents.check_all(complete, model, runs, {})
    # Of what shows without weights, the summary needs what makes runs unequal; a training looks at the rest itself.
    properties = {key: names for key, names in contents.inspect(complete, model).items() if RULES[key].noted}
    contents.check_drawn(complete, model)
    digest = save(models.initial_weights(run.model, run.task, dtype, run.seed), models.state(model), args.output)
    parameters = models.parameter_count(model)
    print(f"{parameters:,} parameters, seed {run.seed}")
    if not args.report:
        return
    loss = None
    if not run.evaluated_sharded:
        device = device_for_rank(run.site.device)
        task = tasks.load(run.task, args.data, dtype, device, loss_chunks=run.recipe.loss_chunks)
        materialize(model, args.output, device)
        properties |= trial.find_properties(complete, task, model)
        notes = contents.check_all(complete, model, runs, properties)
        loss = evaluation.evaluate_model(run, task, model).loss
    for sentence in _of_library(run, model) + notes:
        print(f"note: {sentence}")
    report = InitialReport(
        identity=run_identity.identity_of(run, store.fingerprint_of(args.data)),
        weights=digest,
        parameters=parameters,
        loss=loss,
        properties=properties,
    )
    report.write(args.report)
    print(f"test loss {report.loss}")


def _of_library(run: Run, model: Any) -> list[str]:
    """Return notes on a library's model: keys of its config.json that nothing reads, and a head that is not tied."""
    if run.model.folder is None:
        return []
    from shardlab.models import _transformers

    keys = _transformers.unread(run.task, run.model.folder, run.model.args)
    notes = [f"keys of config.json without effect: {', '.join(keys)}."] if keys else []
    if getattr(model.config, "own_head", False) and not run.model.pretrained:
        notes.append(
            "the output layer has weights of its own, as in published files with tie_word_embeddings false; the "
            "library's new models of this class tie it to the embeddings."
        )
    return notes


def _runs(run: Run, strategies: dict[str, Any]) -> list[Run]:
    """Return the run under each of the strategies that will train."""
    return [Run.model_validate(run.model_dump() | {"strategy": name} | some) for name, some in strategies.items()]
