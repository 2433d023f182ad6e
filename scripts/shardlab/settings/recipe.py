"""How a workload is trained: the recipe of its file, and the overrides of the configuration. Loads no torch."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from shardlab.schema import Strict


class Recipe(Strict):
    """How a workload is trained."""

    optimizer: Literal["sgd", "adam", "adamw", "adadelta"] = Field(
        "adamw", description="torch.optim class; its other arguments are PyTorch's defaults."
    )
    learning_rate: PositiveFloat = Field(1e-3, description="Learning rate of the first epoch.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of the optimizer.")
    gamma: PositiveFloat = Field(1.0, description="Learning rate factor per epoch (StepLR).")
    epochs: PositiveInt = Field(1, description="Passes over the training split.")
    max_steps: PositiveInt | None = Field(None, description="Stop after this many steps (null: no limit).")
    global_batch: PositiveInt = Field(32, description="Samples per step over all ranks; the same for every strategy.")
    evaluation_batch: PositiveInt = Field(64, description="Samples per forward pass without gradient.")
    clip_norm: PositiveFloat | None = Field(
        None, description="Clip the global L2 gradient norm to this (null: no clipping)."
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="Type of weights and arithmetic.")
    accumulate: PositiveInt = Field(
        1, description="Micro-batches that a rank's share of the global batch is split into, one after the other."
    )
    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        "none",
        description="Recompute the workload's blocks in the backward pass: full, or selective (keep what matrix "
        "products and attention gave).",
    )
    compile: Literal["none", "blocks", "model"] = Field(
        "none", description="torch.compile each of the workload's blocks, or the model as one."
    )
    compile_backend: str = Field("inductor", description="Backend of torch.compile (aot_eager needs no compiler).")
    precision: Literal["full", "bf16", "fp16"] = Field(
        "full",
        description="Arithmetic: full is dtype; bf16: weights stay in dtype (autocast, or FSDP's and DeepSpeed's own "
        "mixed precision); fp16: DeepSpeed only. Only full is held to a gate.",
    )
    checkpoint_every: PositiveInt | None = Field(
        None, description="Write a checkpoint after every so many steps (null: none); each replaces the one before."
    )
    evaluation: Literal["whole", "sharded"] = Field(
        "whole",
        description="Test loss from the whole weights on one device, or under the run's own strategy, for models that "
        "one device cannot hold: the initial weights are not evaluated then, nor a metric that needs outputs.",
    )
    keep_best: bool = Field(
        False, description="Also save best.safetensors, the weights with the lowest validation loss."
    )
