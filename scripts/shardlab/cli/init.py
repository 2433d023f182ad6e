"""Draw the initial weights of a workload, once, from one seed on one device: every strategy loads them.

Their test loss is the baseline of a training. What the model contains is checked against the strategies.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import torch

from shardlab import models
from shardlab.cli import program
from shardlab.data import store
from shardlab.errors import UserError
from shardlab.models import contents
from shardlab.models.declared import completed
from shardlab.models.weights import materialize, save
from shardlab.records.reports import InitialReport
from shardlab.runtime import distributed, optimizers, tasks, trial
from shardlab.runtime.device import device_for_rank
from shardlab.settings import code_fingerprint, pretrained, run_identity
from shardlab.settings.model_rules import RULES
from shardlab.settings.types import Run, read_run
from shardlab.train import evaluation


@program
def main(
    settings: Path,
    output: Path,
    data: Path | None = None,
    report: Path | None = None,
    strategies: Annotated[dict[str, Any] | None, json.loads] = None,
) -> None:
    """Build the model, save its weights and, if a report is requested, write their results on the test split."""
    run = read_run(settings)
    distributed.start(run.site)
    dtype = getattr(torch, run.recipe.dtype)
    model = models.build(run.model, run.task, dtype)
    complete = completed(run, model)
    models.check_plan(complete.model, model)
    optimizers.own_settings(run.recipe, model, complete.model.experts)  # checks patterns
    tasks.check_model(run, model)
    code_fingerprint.check_unchanged(run.sources, run.model.sources)
    settings_of = complete.model_dump()
    runs = [
        completed(Run.model_validate(settings_of | {"strategy": name} | some), model)
        for name, some in (strategies or {}).items()
    ]
    notes = contents.check_all(complete, model, runs, {})
    # Of what shows without weights, the summary needs what makes runs unequal; a training looks at the rest itself.
    properties = {key: names for key, names in contents.inspect(complete, model).items() if RULES[key].noted}
    contents.check_drawn(complete, model)
    digest = save(models.initial_weights(run.model, run.task, dtype, run.seed), models.state(model), output)
    parameters = models.parameter_count(model)
    print(f"{parameters:,} parameters, seed {run.seed}")
    if report is None or data is None:
        return
    loss = None
    if not run.evaluated_sharded:
        device = device_for_rank(run.site.device)
        task = tasks.load(run.task, data, dtype, device, loss_chunks=run.recipe.loss_chunks)
        materialize(model, output, device)
        try:
            properties |= trial.find_properties(complete, task, model)
        except Exception as error:
            if isinstance(error, UserError | torch.OutOfMemoryError) or run.model.folder is None:
                raise  # the place in the model's own file is what tells
            said = " ".join(f"{type(error).__name__}: {error}".split())
            if isinstance(error, IndexError):
                said += "; are sequences longer than a table of positions, or tokens beyond the vocabulary?"
            raise UserError(f"{run.model.folder} does not run on its data in {run.recipe.dtype}: {said}") from error
        notes = contents.check_all(complete, model, runs, properties)
        loss = evaluation.evaluate_model(run, task, model).loss
    for sentence in _of_library(run, model) + notes:
        print(f"note: {sentence}")
    drawn = InitialReport(
        identity=run_identity.identity_of(run, store.fingerprint_of(data)),
        weights=digest,
        parameters=parameters,
        loss=loss,
        properties=properties,
    )
    drawn.write(report)
    print(f"test loss {drawn.loss}")


def _of_library(run: Run, model: Any) -> list[str]:
    """Return notes on a library's model: keys of its config.json that nothing reads, and a head that is not tied."""
    if run.model.folder is None:
        return []
    from shardlab.models import _transformers
    from shardlab.proof import tiny_config

    keys = _transformers.unread(run.task, run.model.folder, run.model.args)
    notes = [f"{_transformers.WITHOUT_EFFECT}: {', '.join(keys)}."] if keys else []
    trained = type(model).__name__
    named = pretrained.read_keys(Path(run.model.folder)).get("architectures") or []
    notes += [
        f"config.json names a {name} (architectures), whose head is another; a {trained} is trained."
        for name in named
        if tiny_config.is_of_another_task(name, trained)
    ]
    if getattr(model.config, "own_head", False) and not run.model.pretrained:
        notes.append(
            "the output layer has weights of its own, as in published files with tie_word_embeddings false; the "
            "library's new models of this class tie it to the embeddings."
        )
    return notes
