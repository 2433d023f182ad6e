"""How a workload is trained: the recipe of its file, and the overrides of the configuration."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PositiveInt, model_validator

from shardlab.schema import Strict, one_of
from shardlab.settings.learning_rate import Schedule


class OptimizerClass(NamedTuple):
    """What stands behind an optimizer's name."""

    path: str
    """Module and class."""
    takes: tuple[str, ...] = ()
    """Its arguments besides learning rate and weight decay, of those that ``Optimizer`` has."""
    moments: int = 2
    """Tensors of a parameter's size in its state."""
    fused: bool = False
    """Whether PyTorch has a kernel for the whole update, of DTensors, too; it reads and writes each value once."""

    def states(self, settings: "Optimizer") -> int:
        """Tensors of a parameter's size that it keeps with these settings."""
        return 0 if "momentum" in self.takes and not settings.momentum else self.moments


OPTIMIZERS = {
    "sgd": OptimizerClass("torch.optim.SGD", ("momentum",), 1),
    "adam": OptimizerClass("torch.optim.Adam", ("betas",), fused=True),
    "adamw": OptimizerClass("torch.optim.AdamW", ("betas",), fused=True),
    "adadelta": OptimizerClass("torch.optim.Adadelta"),
}
"""Name: class. Each works on every parameter by itself, so that shards can be updated apart."""


LARGEST = 1e6
"""No factor of a training is larger: float32 would overflow within a few steps."""
Decay = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Strict):
    """The optimizer; arguments that are not here, and those that are null, have PyTorch's defaults."""

    name: Annotated[str, *one_of(OPTIMIZERS)] = Field("adamw", description="adadelta, adam, adamw or sgd.")
    learning_rate: float = Field(1e-3, gt=0, le=LARGEST, description="Learning rate, before the schedule.")
    weight_decay: float = Field(0.0, ge=0, le=LARGEST, description="Weight decay.")
    betas: tuple[Decay, Decay] | None = Field(None, description="adam, adamw: decay of the two moments.")
    momentum: float | None = Field(None, ge=0, le=LARGEST, description="sgd: momentum.")

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments besides learning rate and weight decay that are set."""
        return {key: value for key in ("betas", "momentum") if (value := getattr(self, key)) is not None}

    @model_validator(mode="after")
    def _takes(self) -> "Optimizer":
        for key in self.arguments:
            if key not in OPTIMIZERS[self.name].takes:
                raise ValueError(f"{self.name} takes no {key}; remove it, or set it to null")
        return self


class Recipe(Strict):
    """How a workload is trained."""

    optimizer: Optimizer = Field(default=Optimizer(), description="Optimizer.")
    schedule: Schedule = Field(default=Schedule(), description="Schedule of the learning rate.")
    epochs: PositiveInt = Field(1, description="Passes over the training split.")
    max_steps: PositiveInt | None = Field(None, description="Stop after this many steps (null: no limit).")
    global_batch: PositiveInt = Field(32, description="Samples per step over all ranks; the same for every strategy.")
    evaluation_batch: PositiveInt = Field(64, description="Samples per forward pass without gradient.")
    clip_norm: float | None = Field(
        None, gt=0, le=LARGEST, description="Clip the global L2 gradient norm to this (null: no clipping)."
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="Type of weights and arithmetic.")
    accumulate: PositiveInt = Field(
        1, description="Micro-batches that a rank's share of the global batch is split into, one after the other."
    )
    length_buckets: bool = Field(
        False,
        description="With accumulate: sort a rank's samples of a step by length before they are split into "
        "micro-batches, so that less is padded (xsum); which samples a step has stays.",
    )
    loss_chunks: PositiveInt = Field(
        1,
        description="Parts of the sequence that the logits and the loss of text are computed for one after the other, "
        "and again in the backward pass: all logits are then never there at once (large vocabularies).",
    )
    activation_checkpointing: Literal["none", "selective", "full", "auto"] = Field(
        "none",
        description="Recompute the workload's blocks in the backward pass: full, or selective (keep the results of "
        "matrix products and attention); auto: the least of these with which the run's plan fits into the site's "
        "devices (figures.device_memory_gib; none where that is not known).",
    )
    compile: Literal["none", "blocks", "model"] = Field(
        "none", description="torch.compile each of the workload's blocks, or the whole model."
    )
    compile_backend: str = Field("inductor", description="Backend of torch.compile (aot_eager needs no compiler).")
    precision: Literal["full", "bf16", "fp16", "float8"] = Field(
        "full",
        description="Arithmetic: full is dtype; bf16: weights stay in dtype (autocast, or FSDP's and DeepSpeed's own "
        "mixed precision); fp16: DeepSpeed only; float8: bf16, with the blocks' matrix products in float8 (torchao; "
        "Hopper and newer). Only full is held to a tolerance.",
    )
    deterministic: bool = Field(
        False,
        description="The same bits at every call, also on a GPU, whose fastest kernels add in any order; slower, and "
        "an error where an operator has no such kernel (torch.use_deterministic_algorithms).",
    )
    checkpoint_every: PositiveInt | None = Field(
        None, description="Write a checkpoint every so many steps (null: by time alone)."
    )
    checkpoint_minutes: float | None = Field(
        30, gt=0, description="Write a checkpoint when the last one is so many minutes old (null: by steps alone)."
    )
    checkpoints_kept: int = Field(2, ge=2, description="Checkpoints to keep, the newest ones.")
    non_finite: Literal["stop", "skip"] = Field(
        "stop",
        description="What to do with a step whose loss or gradient norm is not finite: stop, and keep nothing from "
        "that step on; or leave the update out, count the step and go on (not with DeepSpeed), for which each step "
        "waits for its own figures.",
    )
    evaluation: Literal["whole", "sharded"] = Field(
        "whole",
        description="Test loss from the whole weights on one device, or under the run's own strategy, for models that "
        "one device cannot hold: the initial weights are then not evaluated, nor is a metric that needs outputs.",
    )
    keep_best: bool = Field(
        False, description="Also save best.safetensors, the weights with the lowest validation loss."
    )

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether checkpoints are written while the training goes on."""
        return self.checkpoint_every is not None or self.checkpoint_minutes is not None

    def learning_rate(self, step: int, steps: int, steps_per_epoch: int) -> float:
        """Learning rate of ``step``, counted from 0 over all epochs, of ``steps``."""
        return self.optimizer.learning_rate * self.schedule.factor(step, steps, steps_per_epoch)
