"""The mesh of a run: its axes, their degrees, and all that follows from them.

To add an axis, add a field to ``Degrees`` and, if its ranks read different samples, a name to ``DATA``.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from pydantic import ConfigDict, Field, PositiveInt, RootModel, field_validator

from shardlab.errors import UserError, choices
from shardlab.schema import Strict


class Degrees(Strict):
    """Degrees of the mesh axes, outermost first: tensor-parallel groups are neighboring ranks of one node."""

    dp_replicate: int | None = Field(None, description="Degree of replication: DDP, or HSDP with dp_shard.")
    pp: int | None = Field(None, description="Degree of pipeline parallelism.")
    dp_shard: int | None = Field(None, description="Degree of sharding: FSDP (fully_shard).")
    tp: int | None = Field(None, description="Degree of tensor parallelism; stays within a node.")

    @property
    def degrees(self) -> dict[str, int]:
        """Return the axes that are set, outermost first."""
        return {axis: degree for axis in AXES if (degree := getattr(self, axis)) is not None}


AXES = tuple(Degrees.model_fields)
DATA = ("dp_replicate", "dp_shard")
"""Axes whose ranks read different samples, outermost first."""
STAGES = "pp"
"""The axis along which only one rank has the model's output."""


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
    def size(self) -> int:
        """Total number of ranks."""
        return prod(self.root.values())

    def degree(self, *axes: str) -> int:
        """Return the product of the degrees of these axes; 1 for axes that are not named."""
        return prod(self.root.get(axis, 1) for axis in axes)

    @property
    def replicated(self) -> bool:
        """True if replicas average their gradients."""
        return "dp_replicate" in self.root

    @property
    def sharded(self) -> bool:
        """True if weights, gradients and optimizer are sharded over the data-parallel ranks."""
        return "dp_shard" in self.root

    @property
    def pipelined(self) -> bool:
        """True if ranks hold consecutive layers."""
        return "pp" in self.root

    @property
    def tensor_parallel(self) -> bool:
        """True if layers are split internally."""
        return "tp" in self.root

    @property
    def replicas(self) -> int:
        """Degree of replication."""
        return self.degree("dp_replicate")

    @property
    def shards(self) -> int:
        """Degree of sharding."""
        return self.degree("dp_shard")

    @property
    def stages(self) -> int:
        """Degree of pipeline parallelism."""
        return self.degree("pp")

    @property
    def tensor_parts(self) -> int:
        """Degree of tensor parallelism."""
        return self.degree("tp")

    @property
    def data_size(self) -> int:
        """Number of groups of ranks that read different samples."""
        return self.degree(*DATA)

    @property
    def copies(self) -> int:
        """Number of ranks that hold the same output for the same samples."""
        return self.degree(*(axis for axis in AXES if axis not in (*DATA, STAGES)))

    def data_rank(self, place: Mapping[str, int]) -> int:
        """Return the index of the group of ranks that reads what the rank with these coordinates reads."""
        rank = 0
        for axis in DATA:
            rank = rank * self.degree(axis) + place.get(axis, 0)
        return rank

    def stage(self, place: Mapping[str, int]) -> int:
        """Return the index of the pipeline stage of the rank with these coordinates."""
        return place.get(STAGES, 0)


def multiply_out(degrees: Mapping[str, int], nodes: int, ranks_per_node: int, where: str) -> ParallelDims:
    """Return the dims of a world of ``nodes`` x ``ranks_per_node`` ranks; a degree of -1 takes the remaining ranks.

    Raises:
        UserError: the product of the degrees differs from the world size; begins with ``where``.
    """
    world = nodes * ranks_per_node
    if any(degree != -1 and degree < 1 for degree in degrees.values()):
        raise UserError(f"{where}: a degree must be at least 1, or -1 for the remaining ranks; got {dict(degrees)}.")
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
    return ParallelDims(dims)


def divisors(number: int) -> str:
    """List all divisors, as text."""
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
