"""What to run: config/config.yaml and what a call puts over it."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, WithJsonSchema, field_validator

from shardlab.schema import Strict

Count = Annotated[int, Field(gt=0, strict=True)]
"""A number of things: 1 and more, and not yes or true, which YAML and Python take for 1."""
SWEEP = {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]}


class Config(Strict):
    """config/config.yaml: what to run."""

    workloads: list[str] = Field(
        default=["mlp", "mnist", "xsum", "vit", "llama2"],
        min_length=1,
        description="Workloads of the target `all`, from config/workloads.",
    )
    strategies: list[str] = Field(
        default=["single", "ddp", "fsdp", "hsdp", "fsdp_tp", "zero1", "zero2", "zero3"],
        min_length=1,
        description="Strategies of the target `all`, from config/strategies.yaml; [all]: every one of them.",
    )
    site: str = Field("local", description="Where it runs: a file in config/sites.")
    site_settings: dict[str, Any] = Field(
        default={}, description="Overrides for the site's keys, such as {slurm: {account: my_project}}."
    )
    container: bool | None = Field(
        None, description="on: all that needs PyTorch runs inside the image; off: it does not; null: as the site says."
    )
    data: Literal["embedded", "hub"] = Field(
        "embedded", description="embedded: needs no network; hub: the source's own data sets."
    )
    size: str = Field("small", description="A size that each workload names: small or source.")
    nodes: Count = Field(1, description="Nodes of each parallel run.")
    ranks_per_node: Count = Field(2, description="Ranks on each node of a parallel run.")
    seed: int = Field(1, ge=0, lt=2**63, strict=True, description="Seed of weights, batch order and data splits.")
    recipe: dict[str, Any] = Field(default={}, description="Overrides for every workload's recipe, such as max_steps.")
    dtype: Literal["float32", "float64"] | None = Field(
        None,
        description="Short for recipe.dtype (null: as the recipes say). float64 tells rounding from a mistake: native "
        "strategies then agree to 1e-10.",
    )
    twins: NonNegativeInt = Field(
        6,
        le=100,
        description="Trainings of `single` from weights changed by one rounding, which show how equal the others can "
        "be expected to be; in float32, for workloads that one device evaluates. Each costs a training of `single`; "
        "0: none.",
    )
    sweep: Annotated[Any, WithJsonSchema(SWEEP)] = Field(
        default={},
        description="Variants of all runs: keys of the recipe or of strategies, or size, seed, nodes, ranks_per_node, "
        "each with a list or a range ({first, last, step}, or {first, last, count, scale}); their product. A list of "
        "such: one after the other. See docs/sweeps.md.",
    )
    runs_max: Count = Field(1_000, description="Most runs that a sweep may have.")
    usage_seconds: float | None = Field(
        10,
        gt=0,
        description="Sample what each rank uses (CPU cores, memory, its GPU, watts) every so many seconds, into "
        "metrics.jsonl; null: never.",
    )
    tensorboard: bool = Field(
        False, description="Also write TensorBoard's event files, into `results/STRATEGY/WORKLOAD/tensorboard`."
    )
    unfit: Literal["warn", "refuse"] = Field(
        "warn",
        description="What to do with a run whose plan (results/STRATEGY/WORKLOAD/plan.json, where there is one) says "
        "that it does not fit into the site's devices.",
    )
    afresh: bool = Field(
        False,
        description="Begin trainings at their first step where there are checkpoints of another configuration, which "
        "are then replaced; without it such a run is refused.",
    )

    @property
    def train_options(self) -> list[str]:
        """Options of launch.py train: where it begins, what it says of itself. No number depends on them."""
        sampled = [] if self.usage_seconds is None else [f"--usage-seconds {self.usage_seconds:g}"]
        return ["--afresh"] * self.afresh + sampled + ["--tensorboard"] * self.tensorboard

    @field_validator("workloads", "strategies")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ValueError(f"{twice[0]} stands twice; name it once")
        return names

    @property
    def of_one(self) -> "Config":
        """All of it that one run depends on."""
        return self.model_copy(update={"sweep": {}})
