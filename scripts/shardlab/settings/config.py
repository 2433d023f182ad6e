"""What to run: config/config.yaml and what a call puts over it."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, WithJsonSchema, field_validator

from shardlab.schema import Strict, one_of
from shardlab.settings.precisions import STATES

Count = Annotated[int, Field(gt=0, strict=True)]
"""A count of at least 1; not yes or true, which YAML and Python accept as 1."""
SWEEP = {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]}


class Config(Strict):
    """The configuration: config/config.yaml."""

    workloads: list[str] = Field(
        default=["mlp", "mnist", "xsum", "vit", "llama2", "moe", "hf_small"],
        min_length=1,
        description="Workloads of the target `all`: files in config/workloads, or variants of them (docs/your-own.md).",
    )
    strategies: list[str] = Field(
        default=["single", "ddp", "fsdp", "hsdp", "fsdp_tp", "fsdp_cp", "fsdp_ep", "zero1", "zero2", "zero3"],
        min_length=1,
        description="Strategies of the target `all`, from config/strategies.yaml, or variants of them; [all]: all but "
        "those with a script.",
    )
    site: str = Field("local", description="Site to run on: a file in config/sites.")
    site_settings: dict[str, Any] = Field(
        default={}, description="Overrides for the site's keys, such as {slurm: {account: my_project}}."
    )
    container: bool | None = Field(
        None, description="on: run everything that needs PyTorch inside the image; off: do not; null: the site decides."
    )
    data: Literal["embedded", "hub"] = Field(
        "embedded", description="embedded: needs no network; hub: the original data sets."
    )
    size: str = Field("small", description="Size of the workloads: small or source.")
    nodes: Count = Field(1, description="Nodes per parallel run.")
    ranks_per_node: Count = Field(2, description="Ranks per node of a parallel run.")
    seed: int = Field(1, ge=0, lt=2**63, strict=True, description="Seed of weights, batch order and data splits.")
    recipe: dict[str, Any] = Field(default={}, description="Overrides for every workload's recipe, such as max_steps.")
    dtype: Annotated[str, *one_of(STATES)] | None = Field(
        None,
        description="Shorthand for recipe.dtype (null: as in the recipes). float64 tells rounding from mistakes: "
        "native strategies then agree to 1e-10.",
    )
    noise_floor_runs: NonNegativeInt = Field(
        6,
        le=100,
        description="Number of twins (docs/equality.md), each a training of `single`; in low precision, also one in "
        "full precision. None in float64, nor for workloads with sharded evaluation.",
    )
    sweep: Annotated[Any, WithJsonSchema(SWEEP)] = Field(
        default={},
        description="Variants of all runs: keys, each with a list of values (docs/your-own.md).",
    )
    tensorboard: bool = Field(
        False, description="Also write TensorBoard event files to `results/STRATEGY/WORKLOAD/tensorboard`."
    )
    restart: bool = Field(
        False,
        description="Train from the first step, replacing checkpoints of another configuration; without it such a run "
        "is refused.",
    )

    @property
    def train_options(self) -> list[str]:
        """Return `shardlab launch train`'s options for restarting and monitoring. They do not affect the result."""
        return ["--restart"] * self.restart + ["--tensorboard"] * self.tensorboard

    @field_validator("workloads", "strategies")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ValueError(f"{twice[0]} appears twice; name it once")
        return names
