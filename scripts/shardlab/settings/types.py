"""Types of the settings: workload, strategy and run (config.py, sites.py and recipe.py have the others).

The YAML files under ``config/`` are checked against them, and ``scripts/docs.py`` writes the lists of their keys.
"""

import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from shardlab.errors import UserError, choices, remedy
from shardlab.files import read_json
from shardlab.schema import Strict, check, one_of
from shardlab.settings.mesh import Degrees, ParallelDims
from shardlab.settings.pipeline_schedules import SCHEDULES, Schedule
from shardlab.settings.recipe import Adapter, Recipe
from shardlab.settings.sites import SiteRuntime

RESERVED = (
    "init",
    "noise_floor",
    "plans",
    "logs",
    "benchmarks",
    "charts",
    "preflight",
    "diagnosis",
    "export",
)
"""Folders of results/ that are not a run's; no strategy can have these names."""
ROWS = re.compile(r"\w+(\.\w+)*(\[(-?\d+)?:(-?\d+)?\]|\[(-?(\d\d?|100)%)?:(-?(\d\d?|100)%)?\])?")
"""A split of a repository, and rows of it: of what ``datasets`` can read, that which means the same to everybody."""
WARMUP_STEPS = 3
"""First steps after a start, which include setup: times, throughput and waiting exclude them."""


class HubSource(Strict):
    """A data set on the Hugging Face hub."""

    repo: str = Field(description="Data set repository, owner/name.")
    config: str | None = Field(None, description="Configuration (subset) of the repository.")
    revision: str = Field(description="Commit (or branch) to download; a commit pins the data.")
    columns: list[str] = Field(
        description="Columns of a sample, in the task's order; translation.en is the field en of the column "
        "translation."
    )
    splits: dict[Literal["train", "validation", "test"], str] = Field(
        description="Shardlab's split: the repository's split, which may have another name (valid), or rows of it "
        "(train[:80%], train[1000:2000])."
    )
    holdout: dict[Literal["validation", "test"], PositiveInt] = Field(
        default={},
        description="Split that is not in `splits`: number of rows to draw for it (seeded) from those of train, which "
        "then lacks them.",
    )
    rows: dict[Literal["train", "validation", "test"], PositiveInt] = Field(
        default={}, description="Number of leading rows to keep of each split."
    )

    @model_validator(mode="after")
    def _splits_fit(self) -> "HubSource":
        for text in self.splits.values():
            if not ROWS.fullmatch(text):
                raise ValueError(
                    f"{text!r} is no split; write its name, and rows of it in brackets if you want only those, in "
                    "numbers or in percent: train[:80%], train[1000:2000]"
                )
        for name in ("train", "validation", "test"):
            if name in self.splits and name in self.holdout:
                raise ValueError(
                    f"{name} is given by `splits` ({self.splits[name]}) and by `holdout`; remove one of them"
                )
            if name not in self.splits and name not in self.holdout:
                hold = "" if name == "train" else f", or hold out rows of train for it: `holdout: {{{name}: 1000}}`"
                raise ValueError(f"`splits` has no {name}; name the repository's split for it{hold}")
        for (name, one), (other, two) in itertools.combinations(self.splits.items(), 2):
            whole = one.partition("[")[0]
            if whole == two.partition("[")[0] and whole in (one, two):  # of others, the number of rows decides
                raise ValueError(
                    f"{name} ({one}) and {other} ({two}) have rows in common; name other splits, or rows of one: "
                    f"{whole}[:80%] and {whole}[80%:]"
                )
        return self


class DataSource(Strict):
    """A source of a workload's data."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_]+$", description="Data set name: its folder in data/raw and data/prepared."
    )
    reader: str = Field(pattern=r"^[a-z0-9_]+$", description="Module in scripts/shardlab/data that reads the samples.")
    shape: dict[str, Any] = Field(default={}, description="Properties of the data that determine model arguments.")
    model: dict[str, Any] = Field(default={}, description="Model arguments that are specific to this data.")
    hub: HubSource | None = Field(None, description="Data set on the hub; null for embedded data.")


class Size(Strict):
    """A workload at one size."""

    shape: dict[str, Any] = Field(default={}, description="Sizes that are passed to both model and data.")
    model: dict[str, Any] = Field(
        default={},
        description="Arguments of the model; of a transformers model, keys of its config.json to change, and "
        "`pretrained` (false: fresh weights) and `revision` (of the hub).",
    )
    data: dict[str, Any] = Field(default={}, description="Data preparation options.")
    recipe: Recipe = Field(default=Recipe(), description="Training recipe.")


TensorStyle = Literal["column", "column_gather", "row", "vocab", "norm", "norm_whole", "dropout", "router", "experts"]
"""Ways to split a layer over tensor-parallel ranks."""
LibraryStyle = Literal[
    "colwise",
    "colwise_gather_output",
    "rowwise",
    "rowwise_split_input",
    "packed_colwise",
    "packed_colwise_3",
    "packed_rowwise",
    "embedding_rowwise",
    "embedding_colwise",
    "replicated_with_grad_allreduce",
    "local_params",
    "local_heads",
    "moe_tp_experts",
    "moe_identity_expert",
    "mla_kv_a_proj",
    "all_reduce",
    "replicate",
]
"""The same in the words of transformers (transformers/distributed/tensor_parallel.py), and two of ours. local_heads: a
module that computes with numbers of heads that its constructor noted; packed_colwise_3: queries, keys and values, one
after the other in one layer.
"""


CAUSAL = ("language_modelling", "instruction_tuning")
"""Tasks of decoders."""
DECLARED = (*CAUSAL, "classification")
"""Tasks whose transformers models are one list of layers."""


class Workload(Strict):
    """Model, data and recipe: one file in config/workloads."""

    model: str = Field(
        pattern=r"^([a-z0-9_]+|hf:[\w./~-]+)$",
        description="Module in scripts/shardlab/models; or, for a transformers model, hf: and owner/name on the hub or "
        "a folder (a path that begins with / or .).",
    )
    task: str = Field(
        pattern=r"^[a-z0-9_]+$",
        description="Task: a file in scripts/shardlab/runtime/tasks (batches, loss and metric) and one in "
        "scripts/shardlab/data/encoders (prepared arrays).",
    )
    blocks: list[str] = Field(
        default=[],
        description="Submodules that FSDP shards separately, as patterns (layers.*). Empty: with a transformers model, "
        "its layers.",
    )
    tensor: dict[str, TensorStyle | LibraryStyle] = Field(
        default={},
        description="Tensor-parallel plan, submodule pattern: how it is split. column, row: Linear "
        "by output (stays split; column_gather: gathered again), by input; vocab: Embedding by rows; norm: a norm "
        "before column layers (norm_whole: before other layers), split along the sequence with sequence_parallel; "
        "dropout: a Dropout between column and row; router, experts: a mixture of experts, by the hidden size of "
        "each. Empty: tp is not supported. Of a transformers model in the words of the library (colwise, rowwise, "
        "...); empty there: the plan that the library declares.",
    )
    tensor_sizes: list[str] = Field(default=[], description="Model arguments that tp must divide (heads, hidden, ...).")
    context_sizes: list[str] | None = Field(
        None,
        description="Data options that cp must divide (sequence_length); empty: sequences are filled up. null: cp is "
        "not supported, but by decoders of transformers.",
    )
    experts: dict[str, str] = Field(
        default={},
        description="Submodules whose experts ep splits, as patterns: the model argument with their number. Empty: ep "
        "is not supported.",
    )
    segments: list[PositiveInt | str] = Field(
        default=[],
        description="Segments of the model's chain, between which pipelines split it: numbers and model arguments, "
        "added up. Empty: the model is not a chain; pp and mp are not supported.",
    )
    data: dict[Literal["embedded", "hub"], DataSource] = Field(
        min_length=1, description="Data sources; config key `data` selects one."
    )
    sizes: dict[str, Size] = Field(min_length=1, description="Named sizes; config key `size` selects one.")

    @model_validator(mode="after")
    def _words_fit(self) -> Self:
        ours, library = get_args(TensorStyle), get_args(LibraryStyle)
        words = library if self.model.startswith("hf:") else ours
        for pattern, style in self.tensor.items():
            if style not in words:
                whose = "a transformers model" if words is library else "a model of this project"
                raise ValueError(f"tensor: {pattern} is {style}, and {whose} takes {choices(words)}")
        return self

    @property
    def is_declared(self) -> bool:
        """True if the transformers library declares what the file leaves out: blocks, tensor, experts, segments."""
        return self.model.startswith("hf:") and self.task in DECLARED

    @property
    def is_two_stacks(self) -> bool:
        """True if it is an encoder and decoder of the transformers library."""
        return self.model.startswith("hf:") and self.task == "summarization"


class StrategyOptions(Strict):
    """Options of a strategy, besides its degrees."""

    single_process: Literal["dp", "mp"] | None = Field(
        None,
        description="One process drives ranks_per_node devices. dp: torch.nn.DataParallel; mp: consecutive layers "
        "on each device.",
    )
    cpu_offload: bool = Field(False, description="FSDP: keep shards and optimizer state in CPU memory.")
    reshard_after_forward: bool | None = Field(
        None,
        description="FSDP: free a block's gathered weights after its forward pass (null: yes, except for the root "
        "module and under a pipeline).",
    )
    wrap_parameters: PositiveInt | None = Field(
        None,
        description="FSDP: shard every submodule with at least this many parameters separately, instead of the "
        "workload's blocks.",
    )
    find_unused_parameters: bool = Field(
        False,
        description="DDP: the loss may not depend on some parameters, in some steps or on some ranks; look for them in "
        "each step.",
    )
    sequence_parallel: bool = Field(False, description="tp: split activations between the layers along the sequence.")
    loss_parallel: bool = Field(False, description="tp: compute the loss on split logits.")
    context: Literal["gather", "ulysses", "ring"] = Field(
        "gather",
        description="cp: attention over split sequences. gather: to all keys, gathered; ulysses: over whole sequences "
        "with some of the heads; ring: to one rank's keys at a time.",
    )
    pipeline_schedule: Annotated[str, *one_of(SCHEDULES)] = Field(
        "1F1B", description="pp: schedule of torch.distributed.pipelining."
    )
    n_microbatches: PositiveInt = Field(4, description="pp: micro-batches per batch in the pipeline.")

    @property
    def splits_head_and_tail(self) -> bool:
        """True if a rank's part of a sequence is a piece from its head and one from its tail, so that causal attention
        takes equally long on all of them; with Ulysses, all ranks have equally much to do anyway.
        """
        return self.context != "ulysses"

    @property
    def pipeline(self) -> Schedule:
        return SCHEDULES[self.pipeline_schedule]


class Strategy(StrategyOptions, Degrees):
    """Distribution of a model over ranks: one entry of config/strategies.yaml.

    The product of the degrees is the world size (nodes x ranks per node); -1 takes the remaining ranks.
    """

    engine: Literal["torch", "deepspeed"] = Field(
        "torch", description="torch: PyTorch's own parallel modules; deepspeed: ZeRO."
    )
    config: str | None = Field(None, description="DeepSpeed only: JSON file, relative to the project's root.")
    script: str | None = Field(
        None,
        description="A program of your own that trains instead of this project (docs/your-own.md): its path, relative "
        "to the project's root. Besides, only degrees, min_ranks and workloads can be set.",
    )
    workloads: list[str] = Field(
        [], description="With `script`: the workloads that it can train; the others are left out. Empty: all."
    )
    min_ranks: PositiveInt = Field(
        1, description="Minimum number of ranks: ranks_per_node is raised to reach it (2-D meshes need 4)."
    )


class Options(dict[str, Any]):
    """Data options, of which each reader and encoder asks for its own."""

    def __missing__(self, key: str) -> Any:
        raise UserError(
            f"the data needs {key}; set it under `data:` of the size in the workload's file, or under `shape:` if the "
            "model has it, too."
        )


class DataSet(Strict):
    """The data set of a run."""

    name: str = Field(description="Folder in data/prepared.")
    task: str = Field(description="Task, which determines the format of the prepared files.")
    seed: int = Field(description="Seed of splits and generated samples.")
    options: Annotated[dict[str, Any], AfterValidator(Options)] = Field(description="Preparation options.")
    tokenizer: str | None = Field(
        None, description="Folder of the model whose tokenizer is used (null: train one on the train split)."
    )
    model: dict[str, Any] = Field(
        default={}, description="What the workload changes in that model's config.json, of the keys that limit tokens."
    )
    reader: str = Field(description="Module in scripts/shardlab/data.")
    hub: HubSource | None = Field(description="Data set on the hub; null for embedded data.")
    sources: dict[str, str] = Field(default={}, description="Code that reads and encodes it: digests.")


class Model(Strict):
    """The model of a run."""

    name: str = Field(description="Module in scripts/shardlab/models, or hf: and a transformers model.")
    args: dict[str, Any] = Field(description="Model arguments, or changes to a transformers model's config.json.")
    folder: str | None = Field(None, description="Folder of a transformers model; null for other models.")
    repo: str | None = Field(None, description="Repository on the hub that the folder is downloaded from.")
    revision: str | None = Field(None, description="Commit (or branch) of the repository.")
    pretrained: bool = Field(False, description="Start from the folder's weights instead of fresh ones.")
    blocks: list[str] = Field(description="Submodules that FSDP shards separately.")
    tensor: dict[str, str] = Field(description="Tensor-parallel plan.")
    experts: list[str] = Field(default=[], description="Submodules whose experts ep splits.")
    segments: int = Field(description="Number of pieces in its chain; 0: it is not a chain.")
    freeze: list[str] = Field(default=[], description="Parameters that are not trained, from the recipe.")
    adapter: Adapter | None = Field(None, description="Factors that are trained instead, from the recipe.")
    sources: dict[str, str] = Field(default={}, description="Its own file: digest of its code.")


class Ranks(Strict):
    """Frozen settings of the ranks that a site starts, whatever they do: site.json."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    nodes: PositiveInt = Field(description="Nodes.")
    ranks_per_node: PositiveInt = Field(description="Ranks per node.")
    devices_per_rank: PositiveInt = Field(1, description="Devices per rank.")
    mesh: ParallelDims = Field(description="Mesh axis: degree, outermost first; empty for one rank.")
    site: SiteRuntime = Field(description="Site settings.")
    site_name: str = Field(description="Name of the site.")

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def devices_per_node(self) -> int:
        return self.ranks_per_node * self.devices_per_rank

    @property
    def cpus_per_node(self) -> int:
        return self.devices_per_node * self.site.cpus_per_rank

    @property
    def needs_torchrun(self) -> bool:
        """True if torchrun starts the ranks; without it there is one process."""
        return bool(self.mesh)

    @property
    def engine_file(self) -> str:
        """The file in scripts/shardlab/parallel that the ranks import."""
        return "native"


class Run(Ranks):
    """Frozen settings of one workload under one strategy at one site: run.json."""

    strategy: str = Field(description="Name of the strategy.")
    workload: str = Field(description="Name of the workload.")
    size: str = Field(description="Size of the workload.")
    seed: int = Field(description="Seed of weights and batch order.")
    engine: Literal["torch", "deepspeed"] = Field(description="Engine that runs the step.")
    engine_config: dict[str, Any] | None = Field(description="DeepSpeed's complete settings.")
    options: StrategyOptions = Field(description="Options of the strategy.")
    task: str = Field(description="Task.")
    model: Model = Field(description="Model.")
    data: DataSet = Field(description="Data set.")
    recipe: Recipe = Field(description="Training recipe.")
    script: str | None = Field(
        None, description="The user's program that trains, from the project's root; null: this project's."
    )
    sources: dict[str, str] = Field(
        default={},
        description="Code that trains it: digests, one of each folder of scripts/shardlab, or of a script's files.",
    )

    @property
    def needs_torchrun(self) -> bool:
        """See Ranks: DeepSpeed needs it for one rank as well."""
        return self.engine != "torch" or bool(self.mesh)

    @property
    def zero_stage(self) -> int | None:
        """ZeRO stage: DeepSpeed shards 1 the optimizer, 2 also gradients, 3 also weights; None: another engine."""
        if self.engine != "deepspeed":
            return None
        return int((self.engine_config or {}).get("zero_optimization", {}).get("stage", 0))

    @property
    def pipeline_bubble(self) -> float | None:
        """Fraction of a step in which a rank waits if all stages take equally long; None without a formula.

        Huang et al., 2019, arXiv:1811.06965; several stages per rank: Narayanan et al., 2021, arXiv:2104.04473.
        """
        if not self.mesh.pipelined:
            return None
        return self.options.pipeline.bubble(self.mesh.stages, self.options.n_microbatches)

    @property
    def engine_file(self) -> str:
        """The file in scripts/shardlab/parallel whose engine runs the step."""
        if self.engine == "deepspeed":
            return "zero"
        if self.mesh.pipelined:
            return "pipeline"
        return "model_parallel" if self.options.single_process == "mp" else "native"

    @property
    def evaluated_sharded(self) -> bool:
        """True if all ranks evaluate it under its strategy, instead of one device."""
        return self.recipe.evaluation == "sharded"


Frozen = TypeVar("Frozen", bound=Ranks)


def sealed(run: Ranks) -> dict[str, Any]:
    """Return the content of a run.json or site.json, with a seal that shows whether the file was edited."""
    values = run.model_dump(mode="json")
    return values | {"seal": _seal(values)}


def was_edited(values: Any) -> bool:
    """Return whether the content of a run.json is no longer what was sealed; one without a seal was written by hand."""
    return isinstance(values, dict) and "seal" in values and values["seal"] != _seal(values)


def _seal(values: dict[str, Any]) -> str:
    kept = {key: value for key, value in values.items() if key != "seal"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def read_run(path: Path) -> Run:
    """Return the frozen settings in a run.json.

    Raises:
        UserError: the file is missing, damaged, of another version, or was edited.
    """
    return _read(Run, path)


def read_ranks(path: Path) -> Ranks:
    """Return the frozen settings in a site.json.

    Raises:
        UserError: as for ``read_run``.
    """
    return _read(Ranks, path)


def _read(kind: type[Frozen], path: Path) -> Frozen:
    again = remedy("recreate it", path, "--force")
    missing = "name the file that a call of Snakemake wrote for this run, results/STRATEGY/WORKLOAD/run.json"
    values = read_json(path, "settings", again if path.exists() else missing)
    if was_edited(values):
        raise UserError(f"{path} was edited; change the configuration instead, and {again}.")
    if isinstance(values, dict):
        values = {key: value for key, value in values.items() if key != "seal"}
    return check(kind, values, str(path))
