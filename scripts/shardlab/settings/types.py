"""The settings, typed: one definition each for workload, strategy and run (config.py, sites.py, recipe.py: the rest).

``scripts/docs.py`` writes the JSON schemas in ``workflow/schemas/`` from these classes, and the
YAML files under ``config/`` are checked against them.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from shardlab.files import read_json
from shardlab.schema import Strict, check, one_of
from shardlab.settings.mesh import Degrees, ParallelDims
from shardlab.settings.pipeline_schedules import SCHEDULES, Schedule
from shardlab.settings.recipe import Recipe
from shardlab.settings.sites import SiteRuntime

RESERVED = (
    "init",
    "twins",
    "logs",
    "benchmarks",
    "charts",
    "collectives",
    "split_size",
    "preflight",
    "crate",
    "export",
)
"""Folders of results/ that belong to no run, so no strategy can have their names."""
WARMUP_STEPS = 3
"""The first steps after a start, which also set things up: times, throughput and waiting leave them out."""


class HubSource(Strict):
    """Where a data set lies on the Hugging Face hub."""

    repo: str = Field(description="Data set repository, owner/name.")
    config: str | None = Field(None, description="Configuration (subset) of the repository.")
    revision: str = Field(description="Commit (or branch) to download; a commit is a pin.")
    fingerprint: str | None = Field(
        None,
        description="SHA-256 over the downloaded files, as download prints it (null: not checked "
        "against a pinned value, only against the first download).",
    )
    columns: list[str] = Field(description="Columns that make a sample, in the task's order.")
    splits: dict[Literal["train", "validation", "test"], str] = Field(
        description="Shardlab's split: the repository's split."
    )
    holdout: PositiveInt | None = Field(
        None, description="Rows drawn (seeded) from train for validation, where the hub has none."
    )
    rows: dict[Literal["train", "validation", "test"], PositiveInt] = Field(
        default={}, description="Keep only the first rows of a split."
    )


class DataSource(Strict):
    """One place where a workload's data can come from."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_]+$", description="Data set name: its folder in data/raw and data/prepared."
    )
    reader: str = Field(pattern=r"^[a-z0-9_]+$", description="Module in scripts/shardlab/data that reads the samples.")
    shape: dict[str, Any] = Field(default={}, description="Facts of the data that the model's arguments must follow.")
    model: dict[str, Any] = Field(default={}, description="Model arguments that differ with this data.")
    hub: HubSource | None = Field(None, description="Set for data from the hub; null for embedded data.")


class Size(Strict):
    """A workload at one size."""

    shape: dict[str, Any] = Field(default={}, description="Sizes that model and data must agree on (given to both).")
    model: dict[str, Any] = Field(
        default={},
        description="Arguments of the model; of a transformers model, keys of its config.json to change, and "
        "`pretrained` (false: fresh weights) and `revision` (of the hub).",
    )
    data: dict[str, Any] = Field(default={}, description="Options of the data preparation.")
    recipe: Recipe = Field(default=Recipe(), description="How it is trained.")


class Workload(Strict):
    """Model + data + recipe: one file in config/workloads."""

    description: str = Field("", description="One line for people.")
    model: str = Field(
        pattern=r"^([a-z0-9_]+|hf:[\w./~-]+)$",
        description="Module in scripts/shardlab/models, or hf: and a transformers model: owner/name of the hub, or a "
        "folder (a path that begins with / or .).",
    )
    task: str = Field(
        pattern=r"^[a-z0-9_]+$",
        description="Batches, loss and metric: a file in scripts/shardlab/training/tasks, and the prepared arrays: one "
        "in scripts/shardlab/data/encoders.",
    )
    blocks: list[str] = Field(
        default=[],
        description="Submodules that FSDP shards one by one, as patterns (layers.*).",
    )
    tensor: dict[str, Literal["column", "column_gather", "row", "vocab", "norm", "norm_whole", "dropout"]] = Field(
        default={},
        description="Tensor-parallel plan, submodule pattern: how it is split. column, row: Linear "
        "by output (stays split; column_gather: made whole again), by input; vocab: Embedding by rows; norm: a norm "
        "before column layers (norm_whole: before anything else), split along the sequence with sequence_parallel; "
        "dropout: a Dropout between column and row. Empty: no strategy with tp.",
    )
    tensor_sizes: list[str] = Field(default=[], description="Model arguments that tp must divide (heads, hidden, ...).")
    pieces: list[PositiveInt | str] = Field(
        default=[],
        description="Pieces of the model's chain, which pipelines cut between: numbers and model arguments, added "
        "up. Empty: the model is no chain, no strategy with pp or mp.",
    )
    divisible: dict[str, str] = Field(default={}, description="Model argument: the one that must divide it.")
    data: dict[Literal["embedded", "hub"], DataSource] = Field(
        min_length=1, description="Where the data comes from; config key `data` chooses."
    )
    sizes: dict[str, Size] = Field(min_length=1, description="Named sizes; config key `size` chooses.")


class StrategyOptions(Strict):
    """What a strategy says besides its degrees."""

    one_process: Literal["dp", "mp"] | None = Field(
        None,
        description="One process drives ranks_per_node devices. dp: torch.nn.DataParallel; mp: consecutive layers "
        "on each device.",
    )
    cpu_offload: bool = Field(False, description="FSDP: keep shards and optimizer in CPU memory.")
    reshard_after_forward: bool | None = Field(
        None,
        description="FSDP: free a block's gathered weights after its forward pass (null: yes, but for the root "
        "module and under a pipeline).",
    )
    wrap_parameters: PositiveInt | None = Field(
        None,
        description="FSDP: shard every submodule with at least this many parameters by itself, instead of the "
        "workload's blocks.",
    )
    sequence_parallel: bool = Field(False, description="tp: split activations between the layers by sequence.")
    loss_parallel: bool = Field(False, description="tp: compute the loss on logits that stay split.")
    schedule: Annotated[str, *one_of(SCHEDULES)] = Field(
        "1F1B", description="pp: schedule of torch.distributed.pipelining."
    )
    microbatches: PositiveInt = Field(4, description="pp: pieces that a batch is sent through the pipeline in.")

    @property
    def pipeline(self) -> Schedule:
        """What the schedule is."""
        return SCHEDULES[self.schedule]


class Strategy(StrategyOptions, Degrees):
    """How a model is spread over ranks: one entry of config/strategies.yaml.

    The degrees multiply to the world size (nodes x ranks per node); -1 takes what is left.
    """

    engine: Literal["torch", "deepspeed"] = Field(
        "torch", description="torch: PyTorch's own parallel modules; deepspeed: ZeRO."
    )
    config: str | None = Field(None, description="DeepSpeed only: JSON file, from the project's root.")
    min_ranks: PositiveInt = Field(
        1, description="Raise config's ranks_per_node until the run has this many ranks (2-D meshes need 4)."
    )


class DataSet(Strict):
    """The data set of a run."""

    name: str = Field(description="Folder in data/prepared.")
    task: str = Field(description="The task decides the format of the prepared files.")
    seed: int = Field(description="Seed of splits and generated samples.")
    options: dict[str, Any] = Field(description="Options of the preparation.")
    tokenizer: str | None = Field(
        None, description="Folder of the model whose tokenizer is taken (null: one is trained on the train split)."
    )
    reader: str = Field(description="Module in scripts/shardlab/data.")
    hub: HubSource | None = Field(description="Hub source, or null for embedded data.")
    sources: dict[str, str] = Field(default={}, description="Files that read and encode it: digest of their code.")


class Model(Strict):
    """The model of a run."""

    name: str = Field(description="Module in scripts/shardlab/models, or hf: and a transformers model.")
    args: dict[str, Any] = Field(description="Its arguments, or what to change in a transformers model's config.json.")
    folder: str | None = Field(None, description="Folder of a transformers model; null: it is none.")
    repo: str | None = Field(None, description="Repository of the hub that the folder is downloaded from.")
    revision: str | None = Field(None, description="Commit (or branch) of the repository.")
    pretrained: bool = Field(False, description="Start from the folder's weights, not from fresh ones.")
    blocks: list[str] = Field(description="Submodules that FSDP shards one by one.")
    tensor: dict[str, str] = Field(description="Tensor-parallel plan.")
    pieces: int = Field(description="Pieces of its chain; 0: it is none.")
    sources: dict[str, str] = Field(default={}, description="Files that define it: digest of their code.")


class Run(Strict):
    """run.json: one workload under one strategy at one site, complete and frozen."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    strategy: str = Field(description="Name of the strategy.")
    workload: str = Field(description="Name of the workload.")
    size: str = Field(description="Size of the workload.")
    seed: int = Field(description="Seed of weights and batch order.")
    nodes: PositiveInt = Field(description="Nodes.")
    ranks_per_node: PositiveInt = Field(description="Ranks on each node.")
    mesh: ParallelDims = Field(description="Mesh axis: degree, outermost first; empty for one rank.")
    engine: Literal["torch", "deepspeed"] = Field(description="Who runs the step.")
    engine_config: dict[str, Any] | None = Field(description="DeepSpeed's settings, whole.")
    options: StrategyOptions = Field(description="What the strategy says besides its degrees.")
    devices_per_rank: PositiveInt = Field(description="Devices that each rank drives.")
    task: str = Field(description="Batches, loss and metric.")
    model: Model = Field(description="Model.")
    data: DataSet = Field(description="Data set.")
    recipe: Recipe = Field(description="How it is trained.")
    site: SiteRuntime = Field(description="Where it runs.")
    site_name: str = Field(description="Name of the site.")
    sources: dict[str, str] = Field(default={}, description="Files that train it: digest of their code.")

    @model_validator(mode="after")
    def _mesh_fits(self) -> "Run":
        if self.mesh and self.mesh.size != self.world_size:
            raise ValueError(
                f"the mesh {self.mesh.root} has {self.mesh.size} ranks, nodes x ranks_per_node are {self.world_size}; "
                "resolve it again"
            )
        return self

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.nodes * self.ranks_per_node

    @property
    def devices_per_node(self) -> int:
        """Devices that the run uses on each node."""
        return self.ranks_per_node * self.devices_per_rank

    @property
    def cpus_per_node(self) -> int:
        """CPU cores on each node."""
        return self.devices_per_node * self.site.cpus_per_rank

    @property
    def zero_stage(self) -> int | None:
        """What DeepSpeed shards: 1 the optimizer, 2 also the gradients, 3 also the weights; None: another engine."""
        if self.engine != "deepspeed":
            return None
        return int((self.engine_config or {}).get("zero_optimization", {}).get("stage", 0))

    @property
    def engine_file(self) -> str:
        """The file in scripts/shardlab/strategies whose engine runs the step."""
        if self.engine == "deepspeed":
            return "zero"
        if self.mesh.pipelined:
            return "pipeline"
        return "model_parallel" if self.options.one_process == "mp" else "native"

    @property
    def evaluated_sharded(self) -> bool:
        """Whether all ranks evaluate it, under its own strategy, and not one device."""
        return self.recipe.evaluation == "sharded"


def read_run(path: Path) -> Run:
    """The frozen settings in a run.json.

    Raises:
        UserError: the file is missing, damaged or of another version.
    """
    again = f"make it again with: snakemake --force {path}"
    return check(Run, read_json(path, "settings of the run", again), str(path))
