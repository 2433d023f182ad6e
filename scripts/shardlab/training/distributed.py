"""The ranks of a run: process group, device mesh, and this rank's place in it."""

import multiprocessing
import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardlab.errors import UserError
from shardlab.settings.mesh import DATA, ParallelDims

T = TypeVar("T")
OWN = "shardlab_own"
"""Attribute of tensors that belong to no strategy: what is sent of them is left out where traffic is counted."""


@dataclass(frozen=True)
class World:
    """This rank among all ranks."""

    rank: int
    size: int
    device: torch.device
    dims: ParallelDims = field(default_factory=lambda: ParallelDims({}))
    mesh: DeviceMesh | None = None
    """Of the axes of ``dims``; None without a process group."""

    @property
    def main(self) -> bool:
        """Whether this rank prints and saves."""
        return self.rank == 0

    @property
    def data_size(self) -> int:
        """Groups of ranks that read different samples."""
        return self.dims.data_size

    @property
    def data_rank(self) -> int:
        """Number of this rank's group among them."""
        return self.dims.data_rank(self.place)

    @property
    def stage(self) -> int:
        """Number of this rank's stage of the pipeline."""
        return self.dims.stage(self.place)

    @property
    def place(self) -> dict[str, int]:
        """This rank's coordinate along each axis."""
        return {} if self.mesh is None else dict(zip(self.dims.root, self.mesh.get_coordinate() or (), strict=True))

    @property
    def replicate_mesh(self) -> DeviceMesh | None:
        """This rank's 1-D mesh of replicas; None if the run does not name that axis, or without a process group."""
        return self.mesh["dp_replicate"] if self.mesh is not None and self.dims.replicated else None

    @property
    def pipeline_mesh(self) -> DeviceMesh | None:
        """The same of pipeline stages."""
        return self.mesh["pp"] if self.mesh is not None and self.dims.pipelined else None

    @property
    def tensor_mesh(self) -> DeviceMesh | None:
        """The same of tensor parallelism."""
        return self.mesh["tp"] if self.mesh is not None and self.dims.tensor_parallel else None

    @property
    def shard_mesh(self) -> DeviceMesh | None:
        """The mesh that weights are sharded over, 2-D if shards are replicated; None if they are not sharded."""
        if self.mesh is None or not self.dims.sharded:
            return None
        axes = tuple(axis for axis in DATA if axis in self.dims.root)
        return self.mesh[axes] if len(axes) > 1 else self.mesh[axes[0]]

    def sum(self, value: Tensor) -> Tensor:
        """Sum over the data-parallel ranks, of values that are 0 where a pipeline does not have the output."""
        if self.size > 1:
            setattr(value, OWN, True)
            dist.all_reduce(value)
            value = value / self.dims.copies
        return value

    def mean(self, value: float | None) -> float | None:
        """Mean over all ranks of a number that each has; None if one of them has none."""
        values = [each for each in self.gather(value) if each is not None]
        return sum(values) / len(values) if len(values) == self.size else None

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value)
        return values


def start(device_name: str, timeout_seconds: int = 600) -> None:
    """Join the process group that torchrun prepared; without torchrun this is a world of one.

    Raises:
        UserError: the site says cuda, but there are fewer GPUs than ranks on this node.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if device_name == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"rank {local_rank} of this node needs a GPU of its own, but PyTorch sees "
                f"{torch.cuda.device_count()}; lower ranks_per_node or set the site's device to cpu."
            )
        torch.cuda.set_device(local_rank)
    if "RANK" in os.environ and not dist.is_initialized():
        backend, device = ("nccl", torch.device("cuda", local_rank)) if device_name == "cuda" else ("gloo", None)
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds), device_id=device)


def is_main() -> bool:
    """Whether this is the rank that prints and saves."""
    return not dist.is_initialized() or dist.get_rank() == 0


def finish(status: int = 0) -> None:
    """End a rank that succeeded: wait for the others, then leave the process with that status.

    The process is left without Python's finalization: gloo's threads can abort a run there that has already
    written everything (pytorch issue 190489), and DeepSpeed keeps its process groups alive until then. A forked rank
    that has nothing to tell returns, since torchrun waits for that; multiprocessing then leaves it in the same way.
    After an error this must not be called: ranks that still wait in a collective would wait for ever.
    """
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        if status or multiprocessing.parent_process() is None:
            os._exit(status)


def world(dims: ParallelDims, device_name: str) -> World:
    """This rank's place in a mesh of these dims; needs ``start`` first.

    Raises:
        UserError: the number of started ranks is not that of the mesh.
    """
    size = dist.get_world_size() if dist.is_initialized() else 1
    if size != dims.size:
        raise UserError(f"the run needs {dims.size} ranks, but {size} were started; use scripts/launch.py.")
    rank = dist.get_rank() if dist.is_initialized() else 0
    device = torch.device("cuda", torch.cuda.current_device()) if device_name == "cuda" else torch.device("cpu")
    if not dims or not dist.is_initialized():
        return World(rank, size, device, dims)
    mesh = init_device_mesh(device.type, tuple(dims.root.values()), mesh_dim_names=tuple(dims.root))
    return World(rank, size, device, dims, mesh)
