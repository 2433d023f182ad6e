"""Runs of the models in foreign_models.py, which no file of the project has."""

import sys
from types import SimpleNamespace

import reference
import torch
from foreign_models import MODELS

from helpers.common import tiny_run
from shardlab.settings import registry

DATA = "mlp"
"""The workload whose data, task and recipe they have."""
ADAMW = {"name": "adamw", "learning_rate": 0.01, "betas": [0.9, 0.999], "weight_decay": 0.1}
RECIPE = {"optimizer": ADAMW, "max_grad_norm": 1.0}


def register():
    """Let this process find the models as if each were a file in scripts/shardlab/models."""
    files = registry.names
    registry.names = lambda kind: (*files(kind), *MODELS) if kind == "model" else files(kind)
    for name, entry in MODELS.items():
        sys.modules[f"shardlab.models.{name}"] = SimpleNamespace(Model=entry.model)


def run_of(name, strategy, **recipe):
    """A run of a model; its workload has the model's name."""
    run = tiny_run(DATA, strategy, **(RECIPE | recipe))
    args = {key: run.data.options[key] for key in ("inputs", "outputs")}
    of_mlp = {"tensor": {}, "segments": 0}
    model = run.model.model_copy(update=of_mlp | {"name": name, "args": args, "blocks": MODELS[name].blocks})
    return run.model_copy(update={"workload": name, "model": model})


def plain_training(run, folder):
    """What plain PyTorch makes of a run, without a file of initial weights (see reference.py)."""
    torch.manual_seed(run.seed)
    network = MODELS[run.workload].model(**run.model.args)
    reference.in_precision(network, getattr(torch, run.recipe.dtype))
    return reference.train_network(network, run.model_dump(mode="json"), folder)
