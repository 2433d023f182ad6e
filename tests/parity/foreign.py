"""Runs of models that no file of the project has: those of foreign_models.py, and a chain that can be split."""

import sys
from types import SimpleNamespace

import foreign_models
import reference
import torch
import torch.nn.functional as F
from foreign_models import Foreign
from torch import Tensor, nn

from helpers.common import tiny_run
from shardlab.models._chain import Chain, Segment
from shardlab.settings import registry

DATA = "mlp"
"""The workload whose data, task and recipe they have."""
ADAMW = {"name": "adamw", "learning_rate": 0.01, "betas": [0.9, 0.999], "weight_decay": 0.1}
RECIPE = {"optimizer": ADAMW, "max_grad_norm": 1.0}


class AveragingChain(Chain):
    """Each stage has a batch norm, which also takes one sample."""

    class Averaged(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(8)

        def forward(self, h: Tensor) -> Tensor:
            return h + F.gelu(self.linear(self.norm(h.unflatten(-1, (8, -1))).flatten(-2)))

    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.layers = nn.ModuleList(self.Averaged(16) for _ in range(4))

    def segments(self) -> list[Segment]:
        layers = [Segment((f"layers.{number}",), layer) for number, layer in enumerate(self.layers)]
        return [Segment(("first",), self.first), *layers, Segment(("last",), self.last)]


MODELS = foreign_models.MODELS | {
    "averaging_chain": Foreign(AveragingChain, "buffers_in_forward", ["layers.*"], {}),
}
PLANS = {"averaging_chain": {"segments": 6}}


def register():
    """Let this process find the models as if each were a file in scripts/shardlab/models."""
    files = registry.names
    registry.names = lambda kind: (*files(kind), *MODELS) if kind == "model" else files(kind)
    for name, entry in MODELS.items():
        sys.modules[f"shardlab.models.{name}"] = SimpleNamespace(Model=entry.model)


def run_of(name, strategy, **recipe):
    """A run of a model; its workload has the model's name."""
    single = tiny_run(DATA, **(RECIPE | recipe))
    args = {key: single.data.options[key] for key in ("inputs", "outputs")}
    plan = {"tensor": {}, "segments": 0} | PLANS.get(name, {})
    model = single.model.model_copy(update=plan | {"name": name, "args": args, "blocks": MODELS[name].blocks})
    # A workload that every strategy takes.
    run = tiny_run("llama2", strategy, **(RECIPE | recipe))
    same = {key: getattr(single, key) for key in ("data", "task", "recipe")}
    return run.model_copy(update=same | {"workload": name, "model": model})


def plain_training(run, folder):
    """What plain PyTorch makes of a run, without a file of initial weights (see reference.py)."""
    torch.manual_seed(run.seed)
    network = MODELS[run.workload].model(**run.model.args)
    reference.in_precision(network, getattr(torch, run.recipe.dtype))
    return reference.train_network(network, run.model_dump(mode="json"), folder)
