"""What a script left at its end: checked, and turned into the files of a training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from shardlab import models
from shardlab.data.order import BatchOrder
from shardlab.errors import UserError
from shardlab.files import sha256, sync
from shardlab.models.weights import open_weights
from shardlab.records import metrics
from shardlab.records.reports import initial_digest
from shardlab.records.train_report import train_report
from shardlab.runs import script_place
from shardlab.runs.attempts import history
from shardlab.runtime import tasks
from shardlab.settings import run_identity
from shardlab.settings.types import Run
from shardlab.train.evaluation import loss_of

UNKNOWN = (
    *("flops_per_step", "flops_formula", "device_peak_flops"),
    *("tensor_bytes", "traffic", "samples_per_rank", "targets_per_rank", "checkpoints"),
)
"""What nobody measures of a script."""


def accept(run: Run, data: Path, initial: Path, folder: Path, fingerprint: str, origin: Mapping[str, Any]) -> None:
    """Check a script's weights, move them into the run's folder, and write train.json.

    ``initial``: the weights that it started from; ``fingerprint``: of the data set; ``origin``: of code and image.

    Raises:
        UserError: the weights are not those of the model, or a loss is not finite.
    """
    written = folder / script_place.OUTPUT / script_place.WEIGHTS
    check_weights(written, initial, str(run.script))
    records = _with_targets(run, data, metrics.read(folder / metrics.NAME))
    # Moved before they are described, so that a kill in between leaves nothing that looks finished.
    weights = folder / script_place.WEIGHTS
    sync(written)
    written.replace(weights)
    sync(folder)
    measured = script_place.read_measured(folder, run.world_size)
    peaks = [each["peak_memory_bytes"] for each in measured]
    model = models.build(run.model, run.task, getattr(torch, run.recipe.dtype))
    values = dict.fromkeys(UNKNOWN) | {
        "identity": run_identity.identity_of(run, fingerprint),
        "initial_weights": initial_digest(initial),
        "weights": sha256(weights),
        "hosts": [each["host"] for each in measured],
        "cpus": [each["cpus"] for each in measured],
        "devices": [],
        "parameters": sum(value.numel() for value in model.parameters() if value.requires_grad),
        "expert_parameters": models.expert_parameter_count(run.model, models.state(model)),
        "peak_memory_bytes": peaks if peaks and None not in peaks else None,
        "peak_memory_kind": "process RSS",
        "wall_seconds": max((each["wall_seconds"] for each in measured), default=0.0),
    }
    loss = loss_of(run, data, weights, "validation")
    last = next(record for record in reversed(records) if record["kind"] == "train")
    records.append({"kind": "validation", "step": last["step"], "epoch": last["epoch"], "loss": loss})
    values |= {key: value for key, value in origin.items() if key != "attempt"}
    tries = history(folder, values["identity"].numbers)
    train_report(run, records, values, tries).write(folder / "train.json")


def check_weights(path: Path, initial: Path, script: str) -> None:
    """Check that a script's weights have the names, shapes and dtypes of the initial ones, and are finite.

    Raises:
        UserError: they do not, or are missing.
    """
    if not path.is_file():
        raise UserError(f"{script} ended with status 0 without {path}; write the trained weights there before it ends.")
    with open_weights(path) as file, open_weights(initial) as before:
        ours, theirs = ({name: _kind(each, name) for name in sorted(each.keys())} for each in (before, file))
        if missing := sorted(ours.keys() - theirs.keys()):
            raise UserError(f"{path} lacks the weight {missing[0]}; write all weights under the names of {initial}.")
        if extra := sorted(theirs.keys() - ours.keys()):
            raise UserError(f"{path} has a weight {extra[0]}, which {initial} does not have; write only its weights.")
        for name in sorted(ours):
            if theirs[name] != ours[name]:
                raise UserError(f"{name} is {theirs[name]} in {path}, but must be {ours[name]}, as in {initial}.")
            value = file.get_tensor(name)
            if (value.is_floating_point() or value.is_complex()) and not value.isfinite().all():
                raise UserError(f"{name} has values in {path} that are not finite; the training diverged.")


def _kind(file: Any, name: str) -> str:
    part = file.get_slice(name)
    return f"{part.get_dtype()} {tuple(part.get_shape())}"


def _with_targets(run: Run, data: Path, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of a run with the targets of each step, which only the task can count."""
    task = tasks.task_for(run, data, torch.device("cpu"))
    order = BatchOrder(task.samples("train"), run.recipe.global_batch_size, run.seed)
    for record in records:
        if record["kind"] == "train":
            record["targets"] = task.targets("train", order.batch(record["step"]))
    return records
