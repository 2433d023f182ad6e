"""Optimizer of a recipe, and the average of what it trains."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from shardlab import models
from shardlab.errors import UserError
from shardlab.runtime.distributed import local
from shardlab.settings import recipe
from shardlab.settings.precisions import PRECISIONS

EMA = "ema"
"""Of a parameter's average among its optimizer states, in checkpoints."""


class Own(NamedTuple):
    """What a parameter group has of its own."""

    factor: float
    """Factor of the learning rate."""
    weight_decay: float
    matrix: bool = False
    """True if Muon orthogonalizes its updates."""


def own_settings(settings: recipe.Recipe, model: nn.Module, experts: list[str]) -> dict[str, Own]:
    """Return what the recipe says of each trained parameter of the whole model, which may be without weights.

    ``experts``: patterns of the modules whose parameters are stacks of matrices.

    Raises:
        UserError: a pattern of recipe.groups names no trained parameter, or one that another pattern names; muon has no
            matrix to update.
    """
    trained, where = models.trained_names(model), "recipe.groups"
    named_by: dict[str, str] = {}
    for pattern in settings.groups:
        names = [name for name in models.parameters_named(model, pattern, where) if name in trained]
        if not names:
            raise UserError(f"{where}: {pattern} names no parameter that is trained; remove it, or train these.")
        for name in names:
            if name in named_by:
                raise UserError(
                    f"{where}: both {named_by[name]} and {pattern} name {name}; narrow one of them, as a parameter is "
                    "in one group."
                )
            named_by[name] = pattern
    decay = settings.optimizer.weight_decay
    spared = {*models.vectors(model)} if settings.decay == "matrices" else set()
    matrices = {*models.matrices(model, experts)} if settings.optimizer.name == "muon" else set()
    own = {}
    for name in trained:
        group = settings.groups[named_by[name]] if name in named_by else recipe.Group()
        default = 0.0 if name in spared else decay
        weight_decay = default if group.weight_decay is None else group.weight_decay
        own[name] = Own(group.learning_rate_factor, weight_decay, name in matrices and group.optimizer is None)
    if settings.optimizer.name == "muon" and not any(each.matrix for each in own.values()):
        raise UserError(
            "recipe.optimizer: muon updates matrices that are no embeddings, and of these the model trains none; set "
            "name to adamw."
        )
    return own


def grouped(own: Mapping[str, Own], parameters: Mapping[str, Any]) -> Iterator[tuple[Own, dict[str, Any]]]:
    """Yield some of the parameters together that have the same settings of ``own_settings``."""
    groups: dict[Own, dict[str, Any]] = defaultdict(dict)
    for name, parameter in parameters.items():
        groups[own[name]][name] = parameter
    yield from groups.items()


def group(own: Own, parameters: Iterable[Any]) -> dict[str, Any]:
    """Return the parameter group of PyTorch's optimizers."""
    return {"params": [*parameters], "weight_decay": own.weight_decay, "factor": own.factor, "matrix": own.matrix}


def set_learning_rate(optimizer: Any, learning_rate: float) -> None:
    """Set the rate of a step, of each group by its factor; ``optimizer`` may be DeepSpeed's."""
    for each in optimizer.param_groups:
        each["lr"] = learning_rate * each["factor"]


def build(training: recipe.Recipe, parameters: Iterable[Any]) -> Optimizer:
    """Build the optimizer over parameters or parameter groups; each step sets the learning rate (see Recipe)."""
    settings = training.optimizer
    chosen = recipe.OPTIMIZERS[settings.name]
    module, _, name = chosen.path.rpartition(".")
    kind: type[Optimizer] = getattr(import_module(module), name)
    arguments: dict[str, Any] = settings.arguments | ({"fused": True} if chosen.fused else {})
    arguments |= {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.name == "muon":
        arguments["arithmetic"] = getattr(torch, PRECISIONS[training.arithmetic].dtype)
    return kind([*parameters], **arguments)


def create_state(optimizer: Optimizer, parameter: Tensor, key: str, dtype: torch.dtype) -> None:
    """Create one tensor of a parameter's state, as zeros, where the parameter's first update would.

    A parameter that had no gradient yet has no state: its first update creates that.
    """
    if key != "step":
        optimizer.state[parameter][key] = torch.zeros_like(parameter, requires_grad=False)
        return
    counts_on_device = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
    device = parameter.device if counts_on_device else "cpu"
    optimizer.state[parameter][key] = torch.zeros((), dtype=dtype, device=device)


class WeightAverage:
    """Exponential moving average of the trained weights (Tarvainen and Valpola, 2017, arXiv:1703.01780).

    After each update ``decay * average + (1 - decay) * weights``; before the first one, the average is the weights.

    It is held as the weights are, so that no rank has to send anything. ``torch.optim.swa_utils.AveragedModel`` copies
    the whole module instead, which FSDP refuses, and begins with the weights after the first update: only its
    arithmetic is used.
    """

    def __init__(self, decay: float | None, weights: Mapping[str, Tensor]) -> None:
        """``weights`` are updated in place. Without ``decay`` there is no average."""
        self.weights = weights if decay is not None else {}
        self.tensors = {name: value.detach().clone() for name, value in self.weights.items()}
        self._update = get_ema_multi_avg_fn(decay or 0.0)

    def update(self) -> None:
        """Take the weights after an update into account."""
        groups: dict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for name, average in self.tensors.items():
            groups[average.device, average.dtype].append((local(average), local(self.weights[name].detach())))
        for pairs in groups.values():
            averages, weights = map(list, zip(*pairs, strict=True))
            self._update(averages, weights, 0)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and average."""
        for name, average in self.tensors.items():
            weights = self.weights[name]
            kept = weights.detach().clone()
            weights.copy_(average)
            average.copy_(kept)

    def states(self) -> dict[str, Tensor]:
        """Return the averages under the names of optimizer states."""
        return {f"{name}/{EMA}": average for name, average in self.tensors.items()}
