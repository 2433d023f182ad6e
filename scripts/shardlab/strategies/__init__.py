"""Strategies: one file a technique. ``build`` gives the engine that train.py drives, whatever is inside."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor, nn

from shardlab.distributed import World
from shardlab.settings import Run


class Engine(Protocol):
    """What a training run needs from a strategy."""

    model: nn.Module
    """The model to call."""

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss whose mean over the data-parallel ranks is the global loss."""

    def step(self, learning_rate: float) -> float:
        """Clip, update, clear the gradients; returns the global L2 gradient norm before clipping.

        If that is not finite the caller stops; PyTorch's own optimizers have not been stepped then.
        """

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """(parameter name, whole gradient) between backward and step; a collective, same order on all ranks."""

    def weights(self) -> dict[str, Tensor]:
        """The whole weights under the plain model's names, on the CPU; a collective, empty but on rank 0."""


def build(run: Run, model: nn.Module, world: World) -> Engine:
    """The engine of a run's strategy around a whole model on the CPU, the same on every rank."""
    # A strategy's imports take seconds: load only what this run uses.
    if run.engine == "deepspeed":
        from shardlab.strategies.zero import ZeroEngine

        return ZeroEngine(run, model, world)
    from shardlab.strategies.native import NativeEngine

    return NativeEngine(run, model, world)
