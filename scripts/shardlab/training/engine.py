"""The contract between a training run and a strategy: one step, whatever is inside."""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor

from shardlab.training.tasks import MicroBatch


class Engine(Protocol):
    """What a training run needs from a strategy."""

    chunks: int | None
    """Micro-batches must all have the same rows, a multiple of this; None: any number of rows."""
    layout: dict[str, Tensor]
    """Whole weights of the plain model on the meta device, in the order of ``weights``."""
    parameter_count: int
    """Trainable values of the whole model."""
    scales_loss: bool
    """Whether a step whose gradient overflows is left out by a loss scaler, which then scales less (fp16)."""

    def train(self, mode: bool) -> None:
        """Set training or evaluation mode."""

    def loss(self, micro: MicroBatch) -> Tensor:
        """Loss summed over a micro-batch, a scalar: 0 on a rank that does not have the model's output."""

    def add_gradients(self, micro: MicroBatch, scale: float, *, last: bool) -> Tensor:
        """Add the gradients of ``scale`` times the loss; returns the loss (see ``loss``) without a gradient.

        The engine averages over the data-parallel ranks, at the latest with the ``last`` micro-batch of a step.
        """

    def step(self, learning_rate: float) -> Tensor:
        """Clip, update, clear the gradients; returns the global L2 gradient norm before clipping, a scalar.

        Nothing waits for it, but with recipe.non_finite ``skip``: then there is no update where it is not finite.
        """

    def drop_gradients(self) -> None:
        """Clear the gradients without an update."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """(parameter name, whole gradient) before ``step``; a collective, same order on all ranks."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) of the plain model, on the rank's device; a collective, valid on rank 0."""

    def weights_state(self, *, to_write: bool = False) -> dict[str, Tensor]:
        """Names of ``weights``: tensor or DTensor; a collective.

        A rank gives those that it has; they are the engine's own, or are put into it by ``load_weights``. ``to_write``:
        only those that this rank has to write.
        """

    def load_weights(self, state: dict[str, Tensor]) -> None:
        """Take over what was loaded into the tensors of ``weights_state``."""

    def optimizer_state(self, *, to_write: bool = False) -> dict[str, Tensor]:
        """``<parameter name>/<key>``: tensor or DTensor, once a step was taken; a collective.

        A rank gives those of its parameters; they are the engine's own, or are put into it by ``restored``.
        ``to_write``: see ``weights_state``.
        """

    def restored(self, state: dict[str, Tensor]) -> None:
        """Take over what was loaded into the tensors of ``optimizer_state``."""

    def held(self) -> dict[str, list[Tensor]]:
        """What this rank holds now of ``weights``, ``gradients`` and ``optimizer``, as plain tensors."""

    def computed(self) -> list[list[dict[str, Any]]]:
        """For each device of this rank, when it computed in the last ``add_gradients`` (see report/timeline.py).

        Empty where the strategy does not measure it.
        """

    def idle(self) -> list[float] | None:
        """Part of the forward and backward passes, since the last call, in which each device of this rank waited.

        None where the strategy does not measure it; a collective.
        """
