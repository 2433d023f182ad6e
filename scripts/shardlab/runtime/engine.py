"""The protocol between a training run and a strategy: one step, independent of the strategy."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shardlab import models
from shardlab.models import contents
from shardlab.models.declared import completed
from shardlab.runtime import optimizers
from shardlab.runtime.batch_norm import Statistics
from shardlab.runtime.distributed import World
from shardlab.runtime.tasks import MicroBatch, Task
from shardlab.settings.types import Run


class Engine(Protocol):
    """Everything that a training run needs from a strategy."""

    run: Run
    """Its settings, with what the library declares of a transformers model (models/declared.py)."""
    task: Task
    world: World
    statistics: Statistics
    own_settings: dict[str, optimizers.Own]
    """By trained parameter."""
    load_shape: tuple[int, int] | None
    """Layers and experts of the model; None without experts."""
    chunks: int | None
    """If set, all micro-batches need the same number of rows, a multiple of this; None: any number of rows."""
    meta_state_dict: dict[str, Tensor]
    """Whole weights of the plain model on the meta device, in the order of ``weights``."""
    parameter_count: int
    """Number of trainable values in the whole model."""
    parts: list[nn.Module]
    """The plain model on this rank, or the parts of it that this rank holds."""
    scales_loss: bool
    """True if a loss scaler skips steps whose gradients overflow, and then lowers its scale (fp16)."""

    def describe(self, run: Run, task: Task, world: World) -> nn.Module:
        """Fill in what is above of a run, but for its parts and statistics; return the whole model on the meta device.

        Raises:
            UserError: the model does not fit the run (see models/contents.py and ``optimizers.own_settings``).
        """
        # On the meta device: a sharded model is never whole on a rank.
        whole = models.build(run.model, run.task, getattr(torch, run.recipe.dtype))
        self.run = run = completed(run, whole)
        self.task, self.world = task, world
        models.check_plan(run.model, whole)
        contents.check(run, whole)
        self.meta_state_dict = {
            name: torch.empty_like(value, device="meta") for name, value in models.state(whole).items()
        }
        self.parameter_count = models.parameter_count(whole)
        self.own_settings = optimizers.own_settings(run.recipe, whole, run.model.experts)
        self.load_shape = getattr(whole, "load_shape", None)
        return whole

    def train(self, mode: bool) -> None:
        """Set training or evaluation mode."""

    def loss(self, micro: MicroBatch) -> Tensor:
        """Return the loss summed over a micro-batch, a scalar: 0 on a rank that does not have the model's output."""

    def forward_backward(self, micro: MicroBatch, scale: float, *, last: bool) -> Tensor:
        """Add the gradients of ``scale`` times the loss; return the loss (see ``loss``), detached.

        The engine averages over the data-parallel ranks, at the latest with the ``last`` micro-batch of a step.
        """

    def step(self, learning_rate: float) -> Tensor:
        """Clip, update, clear the gradients; return the global L2 gradient norm before clipping, a scalar, for which
        the host does not wait.
        """

    def expert_load(self) -> Tensor | None:
        """Return the tokens per layer and expert that this rank counted since the last call, and the rows that were
        dropped (see Task.counted_load): (layers, experts + 1).

        None if the model has no experts; 0 on a rank that does not have the model's output.
        """
        return self.task.counted_load(self.load_shape)

    def balance(self, load: Tensor) -> None:
        """Balance the experts by a step's tokens per layer and expert over all ranks, (layers, experts)."""

    def zero_grad(self) -> None:
        """Clear the gradients without an update."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (parameter name, whole gradient) before ``step``; a collective, in the same order on all ranks."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, whole tensor) of the plain model, on the rank's device; a collective, valid on rank 0."""

    def averaged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the same as ``weights``, with the averages of recipe.ema_decay for trained weights; a collective."""

    def weights_state(self, *, to_write: bool = False) -> dict[str, Tensor]:
        """Return this rank's tensors or DTensors under the names of ``weights``; a collective.

        They are the engine's own tensors, or ``load_weights`` copies them into the engine. ``to_write``: only those
        that this rank has to write.
        """

    def load_weights(self, state: dict[str, Tensor]) -> None:
        """Copy into the engine what was loaded into the tensors of ``weights_state``."""

    def create_optimizer_state(self, dtypes: Mapping[str, torch.dtype]) -> None:
        """Create, as zeros and without a step, what ``optimizer_state`` returns under these names on this rank."""

    def optimizer_state(self, *, to_write: bool = False) -> dict[str, Tensor]:
        """Return ``<parameter name>/<key>``: tensor or DTensor of this rank's parameters, once a step was taken, and
        their averages (see runtime/optimizers.py); a collective.

        They are the engine's own tensors, or ``load_optimizer_state`` copies them into the engine. ``to_write``: see
        ``weights_state``.
        """

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        """Copy into the engine what was loaded into the tensors of ``optimizer_state``, or into some of them."""

    def tensors_by_kind(self) -> dict[str, list[Tensor]]:
        """Return this rank's current ``weights``, ``gradients`` and ``optimizer`` tensors, as plain tensors; the last
        are its states and the averages of the weights.
        """

    def compute_spans(self) -> list[list[dict[str, Any]]]:
        """Return, for each device of this rank, its compute spans in the last ``forward_backward`` (see
        records/timeline.py).

        Empty if the strategy does not measure them.
        """
        return []

    def idle_fraction(self) -> list[float] | None:
        """Return the fraction of the forward and backward passes since the last call in which each device of this rank
        waited.

        None if the strategy does not measure it; a collective.
        """
        return None
