"""How a workload is trained: the recipe of its file, and the overrides of the configuration."""

import math
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from shardlab.errors import choices
from shardlab.schema import Strict, one_of
from shardlab.settings.precisions import LOW, PRECISIONS, STATES


class OptimizerClass(NamedTuple):
    """Class and properties of a named optimizer."""

    path: str
    """Module and class."""
    takes: tuple[str, ...] = ()
    """Arguments of the class besides learning rate and weight decay, as in ``Optimizer``."""
    fused: bool = False
    """True if PyTorch has a fused kernel for the update, also of DTensors; it reads and writes each value once."""


OPTIMIZERS = {
    "sgd": OptimizerClass("torch.optim.SGD", ("momentum", "nesterov")),
    "adam": OptimizerClass("torch.optim.Adam", ("betas", "eps"), fused=True),
    "adamw": OptimizerClass("torch.optim.AdamW", ("betas", "eps"), fused=True),
    "adadelta": OptimizerClass("torch.optim.Adadelta", ("eps",)),
    "muon": OptimizerClass("shardlab.runtime.muon.Muon", ("momentum", "nesterov", "betas", "eps"), fused=True),
}
"""Name: class. Each but muon updates every value by itself, so that shards can be updated independently."""


def _taking(argument: str) -> list[str]:
    return [name for name, each in OPTIMIZERS.items() if argument in each.takes]


LARGEST = 1e6
"""Maximum of any factor in a training: float32 would overflow within a few steps."""
Decay = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Strict):
    """The optimizer; arguments that are not listed here, and null ones, have PyTorch's defaults."""

    name: Annotated[str, *one_of(OPTIMIZERS)] = Field("adamw", description=f"{choices(OPTIMIZERS)}.")
    learning_rate: float = Field(1e-3, gt=0, le=LARGEST, description="Learning rate, before the schedule.")
    weight_decay: float = Field(0.0, ge=0, le=LARGEST, description="Weight decay.")
    betas: tuple[Decay, Decay] | None = Field(
        None, description=f"{choices(_taking('betas'))}: decay rates of the two moments."
    )
    eps: float | None = Field(
        None, gt=0, le=1, description=f"{choices(_taking('eps'))}: added to the denominator of an update."
    )
    momentum: Decay | None = Field(None, description=f"{choices(_taking('momentum'))}: momentum.")
    nesterov: bool | None = Field(
        None, description=f"{choices(_taking('nesterov'))}: Nesterov's momentum; needs momentum."
    )

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments that are set, besides learning rate and weight decay."""
        return self.model_dump(exclude={"name", "learning_rate", "weight_decay"}, exclude_none=True)

    @model_validator(mode="after")
    def _takes(self) -> "Optimizer":
        for key in self.arguments:
            if key not in OPTIMIZERS[self.name].takes:
                raise ValueError(f"{self.name} takes no {key}; remove it, or set it to null")
        if self.nesterov and not self.momentum and self.name != "muon":
            raise ValueError("nesterov needs momentum; set momentum above 0, or remove nesterov")
        return self


class Schedule(Strict):
    """Schedule of the learning rate: factors of recipe.optimizer.learning_rate, pure functions of the step, so that a
    run that resumes needs no state.
    """

    name: Literal["constant", "step", "linear", "cosine"] = Field(
        "constant", description="constant; step: multiply by gamma after each epoch; linear or cosine: decay to end."
    )
    gamma: float = Field(1.0, gt=0, le=1e6, description="step: factor per epoch.")
    end: float = Field(
        0.0, ge=0, le=1e6, description="linear, cosine: final factor, which a step after the last one would have."
    )
    warmup_steps: NonNegativeInt = Field(0, description="Steps of linear warm-up.")

    def factor(self, step: int, steps: int, steps_per_epoch: int) -> float:
        """Return the factor at ``step`` of ``steps``, both counted over all epochs, the step from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        step_after, steps_after = step - self.warmup_steps, max(steps - self.warmup_steps, 1)
        match self.name:
            case "step":  # the closed form of torch.optim.lr_scheduler.StepLR, once per epoch
                return self.gamma ** (step // steps_per_epoch)
            case "linear":
                return 1.0 + (self.end - 1.0) * step_after / steps_after
            case "cosine":  # Loshchilov and Hutter, 2017 (arXiv:1608.03983), without restarts
                return self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * step_after / steps_after)) / 2
        return 1.0


class Group(Strict):
    """What some parameters have of their own."""

    learning_rate_factor: float = Field(
        1.0, gt=0, le=LARGEST, description="Factor of the learning rate, at every step of the schedule."
    )
    weight_decay: float | None = Field(
        None, ge=0, le=LARGEST, description="Weight decay (null: as recipe.optimizer and recipe.decay say)."
    )
    optimizer: Literal["adamw"] | None = Field(
        None, description="With muon, adamw: update these as vectors and embeddings (usual for the output layer)."
    )


class Adapter(Strict):
    """Trained factors beside frozen layers."""

    kind: Literal["lora"] = Field("lora", description="lora (Hu et al., 2021, arXiv:2106.09685).")
    rank: PositiveInt = Field(8, description="Columns of the one factor, rows of the other.")
    alpha: float = Field(16.0, gt=0, le=LARGEST, description="The product of the factors counts alpha / rank times.")
    targets: list[str] = Field(min_length=1, description="Patterns of nn.Linear submodules, as in `blocks`.")


class Recipe(Strict):
    """Settings of a training."""

    optimizer: Optimizer = Field(default=Optimizer(), description="Optimizer.")
    lr_schedule: Schedule = Field(default=Schedule(), description="Schedule of the learning rate.")
    decay: Literal["all", "matrices"] = Field(
        "all",
        description="Parameters that optimizer.weight_decay applies to: all; or matrices, the usual rule: not to those "
        "of fewer than two dimensions (norms, biases), nor to embeddings (nn.Embedding).",
    )
    groups: dict[str, Group] = Field(
        default={},
        description="Parameters with settings of their own: a pattern of names, as in `blocks`, of parameters or of "
        "modules with all of theirs (`layers.0`, `layers.*.norm`, `output.weight`), and what these have.",
    )
    freeze: list[str] = Field(
        default=[],
        description="Parameters that are not trained: patterns as in `groups`. They have no gradient, no optimizer "
        "state and no decay.",
    )
    adapter: Adapter | None = Field(
        None,
        description="Train low-rank factors of some layers and nothing else (null: train the model itself).",
    )
    epochs: PositiveInt = Field(1, description="Passes over the training split.")
    max_steps: PositiveInt | None = Field(None, description="Stop after this many steps (null: no limit).")
    global_batch_size: PositiveInt = Field(
        32, description="Samples per step over all ranks, the same under every strategy."
    )
    eval_batch_size: PositiveInt = Field(64, description="Samples per forward pass in evaluation.")
    max_grad_norm: float | None = Field(
        None, gt=0, le=LARGEST, description="Maximum global L2 gradient norm (null: no clipping)."
    )
    dtype: Annotated[str, *one_of(STATES)] = Field(
        "float32",
        description="Data type of weights, gradients, optimizer and arithmetic. bfloat16 halves their memory, but "
        "small updates are lost in rounding; it is not compared with a tolerance.",
    )
    gradient_accumulation_steps: PositiveInt = Field(
        1, description="Micro-batches per step: each rank's share of the global batch is split into this many."
    )
    sync_batch_norm: bool = Field(
        False,
        description="Batch norm of data-parallel strategies uses the statistics of all ranks' samples, as one device "
        "does (torch.nn.SyncBatchNorm).",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Label smoothing of the training loss (Szegedy et al., 2016, arXiv:1512.00567), over all classes "
        "or the whole vocabulary. Validation and test losses are without it. A regression has no labels.",
    )
    loss_chunks: PositiveInt = Field(
        1,
        description="Parts of the sequence for which logits and loss of text are computed one after the other, so that "
        "the whole logits are never in memory (large vocabularies).",
    )
    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        "none",
        description="Recompute the workload's blocks in the backward pass: full; selective (keep the results of "
        "matrix products and attention). The plan says the least that fits (docs/plans.md). Blocks that have batch "
        "norm are refused.",
    )
    compile: Literal["none", "blocks"] = Field(
        "none", description="Apply torch.compile to each of the workload's blocks."
    )
    compile_backend: str = Field("inductor", description="Backend of torch.compile (aot_eager needs no compiler).")
    precision: Annotated[str, *one_of(("full", *LOW))] = Field(
        "full",
        description="Arithmetic: full is dtype; "
        + "; ".join(f"{name}: {PRECISIONS[name].description}" for name in LOW)
        + ". Low precision is compared with twins instead of a tolerance (docs/equality.md).",
    )
    deterministic: bool = Field(
        False,
        description="Bitwise reproducible results, also on a GPU (torch.use_deterministic_algorithms): slower, and an "
        "error if an operator has no deterministic kernel.",
    )
    checkpoint_interval_steps: PositiveInt | None = Field(
        None, description="Steps between checkpoints (null: by time only)."
    )
    checkpoint_interval_minutes: float | None = Field(
        30, gt=0, description="Minutes between checkpoints (null: by steps only)."
    )
    keep_last_checkpoints: int = Field(2, ge=2, description="Number of newest checkpoints to keep.")
    evaluation: Literal["whole", "sharded"] = Field(
        "whole",
        description="whole: test loss from the whole weights on one device; sharded: under the run's own strategy, for "
        "models that do not fit one device: the initial weights are then not evaluated, nor metrics that need outputs.",
    )
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Also keep an exponential moving average of the trained weights, but not of buffers, from the "
        "initial ones on: ema_decay * average + (1 - ema_decay) * weights after each step (null: none). It is saved as "
        "ema.safetensors and has its own test loss.",
    )
    keep_best: bool = Field(
        False, description="Also save best.safetensors, the weights with the lowest validation loss."
    )

    @model_validator(mode="after")
    def _groups_of_muon(self) -> "Recipe":
        for pattern, group in self.groups.items():
            if group.optimizer and self.optimizer.name != "muon":
                raise ValueError(f"groups: {pattern}: only muon has an optimizer for some parameters; remove the key")
        return self

    @model_validator(mode="after")
    def _averages(self) -> "Recipe":
        if self.ema_decay is not None and self.dtype == "bfloat16":
            raise ValueError(
                "ema_decay: in dtype bfloat16 rounding leaves an average as it is; set dtype to float32, or ema_decay "
                "to null"
            )
        return self

    @property
    def arithmetic(self) -> str:
        """Name in PRECISIONS of what layers compute in."""
        name = self.dtype if self.precision == "full" else self.precision
        return PRECISIONS[name].arithmetic or name

    def steps(self, steps_per_epoch: int) -> int:
        """Return the number of optimizer steps of a training."""
        return min(self.epochs * steps_per_epoch, self.max_steps or 2**63)

    def learning_rate(self, step: int, steps: int, steps_per_epoch: int) -> float:
        """Return the learning rate of ``step``, counted from 0 over all epochs, of ``steps``."""
        return self.optimizer.learning_rate * self.lr_schedule.factor(step, steps, steps_per_epoch)
