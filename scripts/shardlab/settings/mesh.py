"""The mesh of a run: its axes, what each one splits, their degrees, and all that follows from them.

To add an axis, add a field to ``Degrees`` and declare what its ranks divide among themselves. What they read, hold and
send, and the options that apply, are derived from that.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, PositiveInt, RootModel, field_validator

from shardlab.errors import UserError, choices
from shardlab.schema import Strict

Split = Literal["samples", "sequence", "layers", "tensors", "experts", "states"]
"""Things that the ranks of an axis can divide among themselves.

samples: each reads other samples of the batch. sequence: all read the same samples, each another part of every one.
layers: each computes consecutive layers. tensors: each computes a part of every layer. experts: each has some of the
experts of a layer. states: each keeps a shard of weights, gradients and optimizer, which are gathered for computing.
"""


class Axis(NamedTuple):
    """Properties of a mesh axis."""

    splits: tuple[Split, ...] = ()
    """Things that its ranks divide; they have the same of everything else."""
    techniques: tuple[str, ...] = ()
    """Files in parallel/ that apply it to a model."""
    among: tuple[Split, ...] = ()
    """If not empty: the axis is not a factor of the world size; it groups the ranks that split these once more."""


class Degrees(Strict):
    """Degrees of the mesh axes, outermost first: tensor-parallel groups are neighboring ranks of one node."""

    dp_replicate: Annotated[int | None, Axis(splits=("samples",), techniques=("ddp",))] = Field(
        None, description="Degree of replication: DDP, or HSDP with dp_shard."
    )
    pp: Annotated[int | None, Axis(splits=("layers",), techniques=("pipeline",))] = Field(
        None, description="Degree of pipeline parallelism."
    )
    dp_shard: Annotated[int | None, Axis(splits=("samples", "states"), techniques=("fsdp",))] = Field(
        None, description="Degree of sharding: FSDP (fully_shard)."
    )
    cp: Annotated[int | None, Axis(splits=("sequence", "states"), techniques=("context", "fsdp"))] = Field(
        None,
        description="Degree of context parallelism; states are sharded over dp_shard x cp. Stays within a node if cp x "
        "tp divides its ranks; may span nodes.",
    )
    ep: Annotated[int | None, Axis(splits=("experts",), techniques=("experts",), among=("samples", "sequence"))] = (
        Field(
            None,
            description="Degree of expert parallelism: how many of the data-parallel ranks (dp_replicate x dp_shard x "
            "cp) hold different experts of a layer. It is not a factor of the world size; -1: all of them.",
        )
    )
    tp: Annotated[int | None, Axis(splits=("tensors",), techniques=("tensor",))] = Field(
        None, description="Degree of tensor parallelism; stays within a node."
    )

    @property
    def degrees(self) -> dict[str, int]:
        """Return the axes that are set, outermost first."""
        return {axis: degree for axis in AXES if (degree := getattr(self, axis)) is not None}

    @property
    def splits(self) -> set[Split]:
        """Everything that the axes that are set split."""
        return split_by(self.degrees)


AXES: dict[str, Axis] = {
    name: next(item for item in field.metadata if isinstance(item, Axis))
    for name, field in Degrees.model_fields.items()
}
"""Name: axis, outermost first."""


TIMES, OVER = " x ", " / "
"""Between the axes in the name of a mesh that is their product, and before those that it is divided by."""


def axes_in(name: str) -> list[str]:
    """Return the axes, outermost first, of a product's or a quotient's name; none for ranks outside of the mesh."""
    return [axis for axis in name.partition(OVER)[0].split(TIMES) if axis in AXES]


def split_by(axes: Iterable[str]) -> set[Split]:
    """Return everything that these axes split."""
    return {split for axis in axes for split in AXES[axis].splits}


class ParallelDims(RootModel[dict[str, PositiveInt]]):
    """Mesh axis: degree, outermost first; empty for one rank without a mesh.

    The techniques applied to a model depend on which axes are named, not on their degrees: FSDP on one GPU is still
    FSDP.
    """

    model_config = ConfigDict(frozen=True)

    @field_validator("root")
    @classmethod
    def _known(cls, degrees: dict[str, int]) -> dict[str, int]:
        if unknown := degrees.keys() - set(AXES):
            raise ValueError(f"unknown mesh axis {choices(unknown)}; known: {', '.join(AXES)}")
        return {axis: degrees[axis] for axis in AXES if axis in degrees}

    def __bool__(self) -> bool:
        """True if there is a mesh."""
        return bool(self.root)

    @property
    def factors(self) -> dict[str, int]:
        """Axes whose degrees multiply to the number of ranks, outermost first."""
        return {axis: degree for axis, degree in self.root.items() if not AXES[axis].among}

    @property
    def size(self) -> int:
        return prod(self.factors.values())

    def degree(self, *axes: str) -> int:
        """Return the product of the degrees of these axes; 1 for axes that are not named."""
        return prod(self.root.get(axis, 1) for axis in axes)

    def axes(self, *splits: Split) -> tuple[str, ...]:
        """Return the named axes that split any of these, outermost first."""
        return tuple([axis for axis in self.root if not {*splits}.isdisjoint(AXES[axis].splits)])

    def parts(self, *splits: Split) -> int:
        """Return the number of parts that these are split into; 1 if they are whole."""
        return self.degree(*self.axes(*splits))

    def stride(self, axis: str) -> int:
        """Return the distance between neighboring ranks of an axis: the product of the degrees inside it."""
        names = [*AXES]
        return self.degree(*(name for name in names[names.index(axis) + 1 :] if not AXES[name].among))

    @property
    def replica_axes(self) -> tuple[str, ...]:
        """Axes along which gradients are reduced and states are whole."""
        sharding = self.axes("states")
        return tuple(axis for axis in self.axes("samples", "sequence") if axis not in sharding)

    @property
    def shard_axis(self) -> str:
        """Name of the axes that states are sharded over, as one (see ``axes_in``)."""
        return TIMES.join(self.axes("states"))

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Names of the axes of experts, as those of ``shard_axis``: replicas, shards, and parts; () without experts."""
        parts = self.axes("experts")
        wholes = TIMES.join(self.replica_axes), self.shard_axis
        return tuple(OVER.join((whole, *parts)) for whole in wholes) + parts if parts else ()

    @property
    def techniques(self) -> tuple[str, ...]:
        """Files in parallel/ that apply the axes; FSDP also replicates its shards (HSDP), so without DDP."""
        axes = [axis for axis in self.root if not (self.sharded and axis in self.replica_axes)]
        return tuple(dict.fromkeys(technique for axis in axes for technique in AXES[axis].techniques))

    @property
    def replicated(self) -> bool:
        """True if replicas average their gradients."""
        return bool(self.replica_axes)

    @property
    def sharded(self) -> bool:
        """True if weights, gradients and optimizer are sharded over the data-parallel ranks."""
        return bool(self.axes("states"))

    @property
    def pipelined(self) -> bool:
        """True if ranks hold consecutive layers."""
        return bool(self.axes("layers"))

    @property
    def tensor_parallel(self) -> bool:
        """True if layers are split internally."""
        return bool(self.axes("tensors"))

    @property
    def replicas(self) -> int:
        return self.degree(*self.replica_axes)

    @property
    def shards(self) -> int:
        return self.parts("states")

    @property
    def stages(self) -> int:
        return self.parts("layers")

    @property
    def tensor_parts(self) -> int:
        return self.parts("tensors")

    @property
    def expert_shards(self) -> int:
        return max(1, self.shards // self.parts("experts"))

    @property
    def expert_replicas(self) -> int:
        """Number of copies of each expert's shards."""
        return self.loss_parts // (self.parts("experts") * self.expert_shards)

    @property
    def loss_parts(self) -> int:
        """Number of parts that the loss is summed over: ranks that have other samples or other parts of sequences."""
        return self.parts("samples", "sequence")

    @property
    def data_size(self) -> int:
        """Number of groups of ranks that read different samples."""
        return self.parts("samples")

    @property
    def copies(self) -> int:
        """Number of ranks that hold the same output for the same samples; of a pipeline, only one rank has it."""
        return self.size // self.parts("samples", "sequence", "layers")

    def data_rank(self, place: Mapping[str, int]) -> int:
        """Return the index of the group of ranks that reads what the rank with these coordinates reads."""
        return self._index(place, "samples")

    def sequence_rank(self, place: Mapping[str, int]) -> int:
        """Return the index of the part of every sequence that the rank with these coordinates reads."""
        return self._index(place, "sequence")

    def loss_part(self, place: Mapping[str, int]) -> int:
        """Return the index of the part of the loss that the rank with these coordinates computes."""
        return self._index(place, "samples", "sequence")

    def _index(self, place: Mapping[str, int], *splits: Split) -> int:
        rank = 0
        for axis in self.axes(*splits):
            rank = rank * self.degree(axis) + place.get(axis, 0)
        return rank

    def stage(self, place: Mapping[str, int]) -> int:
        """Return the index of the pipeline stage of the rank with these coordinates."""
        return next((place.get(axis, 0) for axis in self.axes("layers")), 0)


def multiply_out(degrees: Mapping[str, int], nodes: int, ranks_per_node: int, where: str) -> ParallelDims:
    """Return the dims of a world of ``nodes`` x ``ranks_per_node`` ranks; a degree of -1 takes the remaining ranks.

    Raises:
        UserError: the product of the degrees differs from the world size; begins with ``where``.
    """
    world = nodes * ranks_per_node
    grouping = {axis: degree for axis, degree in degrees.items() if AXES[axis].among}
    if any(degree != -1 and degree < 1 for degree in degrees.values()):
        raise UserError(f"{where}: a degree must be at least 1, or -1 for the remaining ranks; got {dict(degrees)}.")
    degrees = {axis: degree for axis, degree in degrees.items() if axis not in grouping}
    open_axes = [axis for axis, degree in degrees.items() if degree == -1]
    if len(open_axes) > 1:
        raise UserError(f"{where}: only one degree can be -1, not {choices(open_axes)}; write numbers for the others.")
    fixed = prod(degree for degree in degrees.values() if degree != -1)
    if world % fixed or (not open_axes and degrees and fixed != world):
        raise UserError(
            f"{where}: the degrees {dict(degrees)} do not divide the world of {world} ranks ({nodes} nodes x "
            f"{ranks_per_node}); make nodes x ranks_per_node a multiple of {fixed}, or lower a degree."
        )
    dims: dict[str, Any] = {axis: world // fixed if degree == -1 else degree for axis, degree in degrees.items()}
    ungrouped = ParallelDims(dims)
    for axis, degree in grouping.items():
        dims[axis] = ungrouped.parts(*AXES[axis].among) if degree == -1 else degree
    return ParallelDims(dims)


def divisors_of(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def divisors(number: int) -> str:
    return ", ".join(map(str, divisors_of(number)))
