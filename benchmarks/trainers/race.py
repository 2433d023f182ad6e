"""Inputs of each trainer in a race: model, batches, optimizer, and its turn at the start of each step."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab import models
from shardlab.data.order import BatchOrder, samples_of
from shardlab.data.split_file import open_arrays
from shardlab.models.weights import materialize
from shardlab.settings.deepspeed import sized
from shardlab.settings.types import Run


@dataclass
class Race:
    """Everything that a trainer needs."""

    run: Run
    data: Path
    weights: Path
    output: Path
    begin: Callable[[], None]
    """Waits for its turn."""
    losses: list[float] = field(default_factory=list)
    """Loss of each step, to check that all trained the same."""

    def record(self, log: Any, loss: float, norm: Any = None) -> None:
        """Append the loss of a step to a file."""
        self.losses.append(loss)
        log.write(
            json.dumps({"step": len(self.losses) - 1, "loss": loss, "norm": norm if norm is None else float(norm)})
            + "\n"
        )
        log.flush()

    @property
    def ranks(self) -> int:
        """Number of ranks that share a batch."""
        return dist.get_world_size() if dist.is_initialized() else 1

    def model(self) -> nn.Module:
        """Return the plain model with its weights."""
        model = models.build(self.run.model, self.run.task, torch.float32)
        materialize(model, self.weights, torch.device("cpu"))
        return model

    def batches(self, *, whole: bool = False) -> Iterator[Tensor]:
        """Yield (samples, length + 1) tokens of each step's batch; this rank's share, unless ``whole``."""
        tokens = open_arrays(self.data / "train.safetensors")["tokens"]
        recipe = self.run.recipe
        order = BatchOrder(len(tokens), recipe.global_batch_size, self.run.seed)
        rank, ranks = (dist.get_rank(), self.ranks) if self.ranks > 1 and not whole else (0, 1)
        for number in range(recipe.max_steps or 0):
            yield torch.from_numpy(tokens[samples_of(order.batch(number), rank, ranks)]).long()

    def engine_config(self, model: nn.Module) -> dict[str, Any]:
        """Return DeepSpeed's settings with its bucket sizes as numbers, as Shardlab's engine computes them; empty for
        other engines.

        DeepSpeed does not know "auto", and transformers derives such sizes from the config of its own models.
        """
        return sized(self.run.engine_config, models.parameter_count(model)) if self.run.engine_config else {}

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """Build the recipe's optimizer."""
        settings = self.run.recipe.optimizer
        return torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
