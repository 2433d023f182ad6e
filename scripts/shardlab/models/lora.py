"""Low-rank adapters (Hu et al., 2021, arXiv:2106.09685): two trained factors beside a frozen Linear layer.

The layer stays where it is, with its names: patterns, plans and files of weights fit with and without adapters.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.errors import UserError, choices
from shardlab.patches.torch_internals import with_base
from shardlab.settings.recipe import Adapter

FACTORS = ("lora_A", "lora_B")


def factors_generator() -> torch.Generator:
    """Return a stream apart from that of the weights, so that these are what they are without an adapter."""
    return torch.Generator().manual_seed(torch.initial_seed() + 1)


class AdaptedLinear(nn.Linear):
    """x W^T + b + alpha / rank * (x A^T) B^T, with ``lora_A`` (rank, in_features), ``lora_B`` (out_features, rank)."""

    lora_A: nn.Parameter  # noqa: N815 (peft's name)
    lora_B: nn.Parameter  # noqa: N815
    scaling: float

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.reset_factors(factors_generator())

    def reset_factors(self, generator: torch.Generator) -> None:
        """Draw A from peft's distribution, and set B to zero: the model begins as it was."""
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5), generator=generator)
        nn.init.zeros_(self.lora_B)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return super().forward(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling


def attach(model: nn.Module, adapter: Adapter, names: Mapping[str, list[str]]) -> None:
    """Turn the Linear layers that the adapter names into adapted ones, in place, and freeze everything else.

    ``names``: the names of the submodules that each pattern of the targets matches. Their factors are drawn from one
    stream, one layer after the other; a model that is drawn module by module has one stream for each layer.

    Raises:
        UserError: a pattern matches nothing; a target is no Linear layer, or smaller than the rank.
    """
    model.requires_grad_(False)
    generator = factors_generator()
    for pattern, found in names.items():
        if not found:
            layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
            raise UserError(
                f"recipe.adapter: targets: {pattern} names no submodule of the model; of its {len(layers)} nn.Linear "
                f"layers the first are {choices(layers[:20])}."
            )
        for name in found:
            layer = model.get_submodule(name)
            if isinstance(layer, AdaptedLinear):  # two patterns name it
                continue
            if type(layer) is not nn.Linear:
                raise UserError(
                    f"recipe.adapter: targets: {pattern} names {name}, of type {type(layer).__name__}, and adapters "
                    "are factors of nn.Linear layers; narrow the pattern."
                )
            if adapter.rank > min(layer.in_features, layer.out_features):
                raise UserError(
                    f"recipe.adapter: rank {adapter.rank} is more than {name} has, a matrix of {layer.out_features} x "
                    f"{layer.in_features}; lower it, or narrow targets."
                )
            with_base(layer, AdaptedLinear, scaling=adapter.alpha / adapter.rank)
            adapted: Any = layer
            adapted.lora_A = nn.Parameter(torch.empty(adapter.rank, layer.in_features))
            adapted.lora_B = nn.Parameter(torch.empty(layer.out_features, adapter.rank))
            adapted.reset_factors(generator)


@contextmanager
def factors_apart(model: nn.Module) -> Iterator[dict[AdaptedLinear, dict[str, nn.Parameter]]]:
    """Yield the factors of each adapted layer, which has none meanwhile; what is in the dictionary then comes back."""
    layers = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
    factors: dict[AdaptedLinear, dict[str, Any]] = {}
    for layer in layers:
        factors[layer] = {key: layer._parameters.pop(key) for key in FACTORS}
    yield factors
    for layer, own in factors.items():
        for key, value in own.items():
            layer.register_parameter(key, value)


def without_factors(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if not name.endswith(FACTORS)}


def merged(weights: Mapping[str, Tensor], adapter: Adapter) -> dict[str, Tensor]:
    """Return the weights of the model without adapters that computes the same: W + alpha / rank * B A."""
    plain = without_factors(weights)
    for name in weights:
        layer, _, key = name.rpartition(".")
        if key == "lora_A":
            base = plain[f"{layer}.weight"]
            product = weights[f"{layer}.lora_B"].double() @ weights[name].double()
            plain[f"{layer}.weight"] = (base.double() + adapter.alpha / adapter.rank * product).to(base.dtype)
    return plain
