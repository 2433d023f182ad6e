"""The ranks of a run: process group, device mesh, and this rank's place in it."""

import multiprocessing
import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardlab.errors import UserError
from shardlab.models._sequence import SequenceSplit
from shardlab.runs import gpus
from shardlab.runtime import device, one_node
from shardlab.settings.mesh import TIMES, ParallelDims
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import Ranks, Run

T = TypeVar("T")
NOT_TRAFFIC = "shardlab_own"
"""Attribute of tensors that belong to no strategy: what is sent of them is left out where traffic is counted."""


@dataclass(frozen=True)
class World:
    """This rank among all ranks."""

    rank: int
    size: int
    device: torch.device
    dims: ParallelDims = field(default_factory=lambda: ParallelDims({}))
    mesh: DeviceMesh | None = None
    """Mesh with the axes of ``dims``; None without a process group."""
    grouped: DeviceMesh | None = None
    """The data-parallel ranks as (replicas, shards, parts) of experts; None unless the run names that axis."""
    head_tail: bool = False
    """See StrategyOptions."""
    others: tuple[torch.device, ...] = ()
    """Additional devices that this rank drives alone (dp and mp)."""

    @property
    def devices(self) -> list[torch.device]:
        """All devices of this rank."""
        return [self.device, *self.others]

    @property
    def cpus(self) -> str:
        """The CPU cores that this rank may run on, as in 0-3,8."""
        return gpus.cores()

    @property
    def is_rank0(self) -> bool:
        """True on the rank that prints and saves."""
        return self.rank == 0

    @property
    def data_size(self) -> int:
        """Number of groups of ranks that read different samples."""
        return self.dims.data_size

    @property
    def data_rank(self) -> int:
        """Index of this rank's group among them."""
        return self.dims.data_rank(self.place)

    @property
    def loss_part(self) -> int:
        """Index of the part of the loss that this rank computes: of the samples, and of their sequences."""
        return self.dims.loss_part(self.place)

    @property
    def sequence(self) -> SequenceSplit:
        """This rank's part of every sequence."""
        parts, rank = self.dims.parts("sequence"), self.dims.sequence_rank(self.place)
        return SequenceSplit(parts, rank, head_tail=self.head_tail) if parts > 1 else SequenceSplit()

    @property
    def stage(self) -> int:
        """Index of this rank's pipeline stage."""
        return self.dims.stage(self.place)

    @property
    def place(self) -> dict[str, int]:
        """This rank's coordinate along each axis."""
        return {} if self.mesh is None else dict(zip(self.dims.factors, self.mesh.get_coordinate() or (), strict=True))

    @property
    def data_group(self) -> dist.ProcessGroup | None:
        """This rank's group of ranks that have other samples or parts of sequences; None as for ``submesh``."""
        axes = self.dims.axes("samples", "sequence")
        ranks = self.submesh(axes)
        if ranks is None:
            return None
        return (ranks._flatten(TIMES.join(axes)) if len(axes) > 1 else ranks).get_group()

    @property
    def shard_mesh(self) -> DeviceMesh | None:
        """Mesh that weights are sharded over, 2-D if shards are replicated; None if they are not sharded."""
        return self.submesh((*self.dims.replica_axes, self.dims.shard_axis)) if self.dims.sharded else None

    @property
    def expert_mesh(self) -> DeviceMesh | None:
        """This rank's 1-D mesh of ranks with different experts; None as for ``submesh``."""
        return None if self.grouped is None else self.grouped[self.dims.expert_axes[2]]

    @property
    def expert_shard_mesh(self) -> DeviceMesh | None:
        """Mesh that a rank's experts are sharded over, 2-D if the shards are replicated; None as for ``shard_mesh``."""
        if self.grouped is None or not self.dims.sharded:
            return None
        replicas, shards, _ = self.dims.expert_axes
        return self.grouped[(replicas, shards) if self.dims.expert_replicas > 1 else shards]

    def stage_group(self) -> dist.ProcessGroup | None:
        """Return the group of the ranks with the same modules: all of them, or those of this rank's pipeline stage.

        None for one rank; a collective, since it may be a new group.
        """
        if self.size == 1:
            return None
        if self.mesh is None or not self.dims.axes("layers"):
            return dist.group.WORLD
        axes = tuple(axis for axis in self.dims.factors if axis not in self.dims.axes("layers"))
        if not axes:
            return None
        mesh = self.submesh(axes)
        assert mesh is not None
        return (mesh._flatten() if len(axes) > 1 else mesh).get_group()

    def submesh(self, axes: tuple[str, ...]) -> DeviceMesh | None:
        """Return this rank's mesh of some axes; None if there are none, or without a process group."""
        if self.mesh is None or not axes:
            return None
        return self.mesh[axes] if len(axes) > 1 else self.mesh[axes[0]]

    def sum(self, value: Tensor) -> Tensor:
        """Sum over the data-parallel ranks; values are 0 on pipeline ranks that do not have the output."""
        if self.size > 1:
            setattr(value, NOT_TRAFFIC, True)
            dist.all_reduce(value)
            value = value / self.dims.copies
        return value

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value)
        return values


def start(site: SiteRuntime, timeout_seconds: int = 600) -> None:
    """Set this rank's device and cores, and join the process group that torchrun prepared; without torchrun, a world of
    one.

    Raises:
        UserError: the site says cuda, but there are fewer GPUs than ranks on this node.
    """
    own = device.device_for_rank(site.device)
    device.use(own)
    device.bind_to_near_cores(own)
    device.warn_if_shared(own)
    device.exact()
    if "RANK" in os.environ and not dist.is_initialized():
        timeout = timedelta(seconds=timeout_seconds)
        dist.init_process_group(
            dist.get_default_backend_for_device(own),
            timeout=timeout,
            device_id=None if own.type == "cpu" else own,
            store=one_node.store(timeout),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )


def limit_groups(timeout_seconds: int) -> None:
    """Set the timeout of collectives in every group: the groups of a mesh are made with PyTorch's defaults."""
    for group in [*dist.distributed_c10d._world.pg_map] if dist.is_initialized() else ():
        for kind in group._device_types:
            group._get_backend(kind)._set_default_timeout(timedelta(seconds=timeout_seconds))


PEER_FAILURES = (
    # gloo
    "Connection closed by peer",
    "Connection reset by peer",
    # NCCL
    "Connection closed by remote peer",
    "remote process exited",
    "ncclRemoteError",
    "communicator was aborted",
)
"""Error messages of gloo and NCCL on a rank whose neighbor ended."""


def is_peer_failure(error: BaseException) -> bool:
    """Return whether a rank's error only reports that another rank failed."""
    return any(phrase.lower() in str(error).lower() for phrase in PEER_FAILURES)


def text_of_mesh(mesh: DeviceMesh) -> str:
    """Return the axes and degrees of a mesh as text: dp_shard=2, tp=2."""
    return ", ".join(f"{name}={size}" for name, size in zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))


def plain(value: Tensor) -> Tensor:
    """Return the full tensor of a DTensor (a collective), or a plain tensor unchanged.

    By its attributes, not by its type: importing DTensor takes half a second that plain tensors do not need.
    """
    full_tensor = getattr(value, "full_tensor", None)
    return cast(Tensor, full_tensor() if full_tensor else value)


def local(value: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, or a plain tensor unchanged."""
    return cast(Tensor, getattr(value, "_local_tensor", value))


def is_main() -> bool:
    """Return whether this is the rank that prints and saves."""
    return not dist.is_initialized() or dist.get_rank() == 0


def finish(status: int = 0) -> None:
    """End a rank that succeeded: wait for the others, then exit with this status.

    The process skips Python's finalization: gloo's threads can abort a run there that has already written everything
    (pytorch issue 190489), and DeepSpeed keeps its process groups alive until then. A forked rank with status 0
    returns, since torchrun waits for the return value; multiprocessing then exits it in the same way. Do not call this
    after an error: ranks that still wait in a collective would wait forever.
    """
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        if status or multiprocessing.parent_process() is None:
            os._exit(status)


def world(run: Ranks, site_device: str | None = None) -> World:
    """Return this rank's place in a run's mesh, on its site's device by default; call ``start`` first.

    Raises:
        UserError: the number of started ranks differs from the mesh's, or there are fewer GPUs than this rank drives.
    """
    dims, size = run.mesh, dist.get_world_size() if dist.is_initialized() else 1
    if size != dims.size:
        raise UserError(f"the run needs {dims.size} ranks, but {size} were started; use `shardlab launch`.")
    rank = dist.get_rank() if dist.is_initialized() else 0
    kind = site_device or run.site.device
    own, *others = (
        [device.device_for_rank(kind)]
        if run.devices_per_rank == 1
        else device.devices_for_process(kind, run.devices_per_rank)
    )
    if not dims or not dist.is_initialized():
        return World(rank, size, own, dims, others=tuple(others))
    mesh = init_device_mesh(own.type, tuple(dims.factors.values()), mesh_dim_names=tuple(dims.factors))
    if len(sharding := dims.axes("states")) > 1:
        mesh[sharding]._flatten(dims.shard_axis)
    head_tail = isinstance(run, Run) and run.options.splits_head_and_tail
    return World(rank, size, own, dims, mesh, _grouped(mesh, dims), head_tail=head_tail)


def _grouped(mesh: DeviceMesh, dims: ParallelDims) -> DeviceMesh | None:
    """Return the data-parallel ranks as (replicas, shards, parts) of experts, the parts innermost."""
    if not dims.expert_axes:
        return None
    data = dims.axes("samples", "sequence")
    ranks = mesh[data]._flatten(TIMES.join(data)) if len(data) > 1 else mesh[data[0]]
    degrees = dims.expert_replicas, dims.expert_shards, dims.parts("experts")
    return ranks._unflatten(0, degrees, dims.expert_axes)
