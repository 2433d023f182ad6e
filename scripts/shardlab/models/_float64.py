"""Float64 throughout a model of the transformers library, whose norms, routers and softmax compute in float32.

Sums would be rounded there, so that no two ways to divide a batch are equal to more than seven digits.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from shardlab.patches.torch_internals import around_forward


def widen(model: nn.Module, layers: Iterable[nn.Module]) -> None:
    """Make what a model asks for in float32 float64, in place; ``layers``: those that may be recomputed by themselves.

    Experts are called one by one: the library's grouped product has no float64.
    """
    for module in (*layers, model):
        around_forward(module, _in_float64)
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_experts_implementation", None):
            config._experts_implementation = "eager"


def _in_float64(forward: Callable[..., Any]) -> Callable[..., Any]:
    def wide(module: nn.Module, *args: Any, **named: Any) -> Any:
        with Float64():
            return forward(module, *args, **named)

    return wide


class Float64(TorchFunctionMode):
    """Makes what is asked for in float32 float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call with float64 in place of float32."""
        named = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return (torch.Tensor.double if func is torch.Tensor.float else func)(*map(_wide, args), **named)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
