"""Traffic between the ranks in a step, counted at the operators that PyTorch's collectives consist of."""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardlab.errors import UserError
from shardlab.records.timeline import EVENTS_SHOWN, RANKS_SHOWN
from shardlab.runtime.distributed import NOT_TRAFFIC, World

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "sharddimalltoall": "all_to_all",
    "send": "send",
    "isend": "send",
}
"""Begin of an operator's name without underscores, the longer one first: its collective.

The older names (``c10d_functional``) are dispatched as those of ``_c10d_functional``.
"""
SENDS_NOTHING = {
    "c10d.barrier",
    "c10d.monitored_barrier_",
    "c10d.check_for_nan",
    "c10d.recv_",
    "c10d.recv_any_source_",
    "_c10d_functional.irecv",
    "_c10d_functional.wait_tensor",
    "_c10d_functional._wrap_tensor_autograd",
    "_dtensor.mesh_get_process_group",
}
"""Operators of the same namespaces that send nothing; received data is counted at the sender."""
COUNTED = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
NAMESPACES = COUNTED | {"c10d_functional", "symm_mem"}
"""Communication namespaces: each of their operators that runs must be in one of the tables above."""


def collective_of(operator: str) -> str | None:
    """Return the collective of an operator, such as c10d.allreduce_; None if it is of none that is known."""
    space, _, name = operator.partition(".")
    name = name.replace("_", "")
    return next((kind for begin, kind in COLLECTIVES.items() if space in COUNTED and name.startswith(begin)), None)


def fraction_sent(collective: str, ranks: int) -> float:
    """Return the fraction of the data that a rank has to send: the factor of nccl-tests' bus bandwidth."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if collective in ("send", "broadcast", "reduce") else (ranks - 1) / ranks


class TimelineRecorder:
    """Phases of a rank in one step, and what it sent; in host seconds from the step's start.

    Recorded while the step is counted, which slows it down: the order is accurate, the times are not.
    """

    def __init__(self) -> None:
        self.phases: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self._begun = 0.0
        self._update = False

    def begin(self) -> None:
        """Start of the step."""
        self._begun = time.perf_counter()

    def update(self) -> None:
        """End of the backward pass; the optimizer follows."""
        if not self._update and len(self.phases) > 1 and self.phases[-1]["name"] == "forward":
            self.phases[-1]["name"] = "losses"  # summed over the ranks
        self._update = True

    def operator(self) -> None:
        """Record an operator: in a node of the backward pass, in a forward pass with gradients, or between the two."""
        name = self.phases[-1]["name"] if self.phases else "forward"
        if self._update:
            name = "update"
        elif torch._C._current_autograd_node() is not None:
            name = "backward"
        elif torch.is_grad_enabled():
            name = "forward"
        if not self.phases or self.phases[-1]["name"] != name:
            now = self._now()
            self._close(now)
            self.phases.append({"name": name, "start": now, "end": now})

    def send(self, began: float, axis: str, collective: str, size: float) -> None:
        """Record a collective that started at ``began`` (perf_counter) and sends ``size`` bytes."""
        if len(self.sent) < EVENTS_SHOWN:
            start = began - self._begun
            self.sent.append(
                {"start": start, "end": self._now(), "axis": axis, "collective": collective, "bytes": size}
            )

    def end(self) -> None:
        """End of the step."""
        self._close(self._now())

    def report(self, world: World) -> dict[str, Any]:
        """Return the timelines of the ranks that are shown, under the names of records/timeline.py; a collective."""
        local = (self.phases, self.sent) if world.rank < RANKS_SHOWN else ([], [])
        phases, sent = zip(*world.gather(local)[:RANKS_SHOWN], strict=True)
        return {"phases": phases, "sent": sent}

    def _close(self, now: float) -> None:
        if self.phases:
            self.phases[-1]["end"] = now

    def _now(self) -> float:
        return time.perf_counter() - self._begun


class Traffic(TorchDispatchMode):
    """Counts the bytes of every collective while it is active, by mesh axis.

    Tensors with one value (norms) and those of ``World.sum`` (losses) are left out: they belong to the training loop,
    not to a strategy.
    """

    def __init__(self, world: World, timeline: TimelineRecorder) -> None:
        """Collectives are also recorded in ``timeline``, with their time."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: defaultdict[tuple[str, str], float] = defaultdict(float)
        """(mesh axis, collective): bytes that this rank sends."""
        self.timeline = timeline
        self.axes: dict[tuple[int, ...], str] = {tuple(range(world.size)): "world"}
        self.exchanges: dict[tuple[int, ...], str] = {}
        """Axes whose ranks may be those of another one, and send nothing but all-to-all."""
        mesh, dims = world.mesh, world.dims
        for axis in [*dims.factors, *([dims.shard_axis] if dims.sharded else [])] if mesh else ():
            if len(ranks := _ranks(mesh, axis)) > 1:
                self.axes[ranks] = axis
        for axis in dims.expert_axes if world.grouped else ():
            if len(ranks := _ranks(world.grouped, axis)) > 1:
                (self.exchanges if axis in dims.root else self.axes).setdefault(ranks, axis)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count it if it is a collective.

        Raises:
            UserError: the number of bytes that it sends is unknown.
        """
        if any("DTensor" in kind.__name__ for kind in types):
            return NotImplemented  # it is dispatched again as its component operators
        self.timeline.operator()
        name, began = str(func).rpartition(".")[0], time.perf_counter()
        collective = collective_of(name)
        if collective is None and name.partition(".")[0] in NAMESPACES and name not in SENDS_NOTHING:
            raise UserError(
                f"the operator {name} communicates, but its number of bytes is unknown; add it to COLLECTIVES, or "
                "if it sends nothing to SENDS_NOTHING, in scripts/shardlab/measure/traffic.py."
            )
        result = func(*args, **(kwargs or {}))
        if collective:
            self._count(name, collective, args, began)
        return result

    def report(self, world: World) -> list[dict[str, Any]]:
        """Return the bytes sent per rank, by mesh axis and collective: the mean over the ranks; a collective."""
        ranks = world.gather(dict(self.bytes))
        keys = sorted({key for counted in ranks for key in counted})
        means = {key: sum(counted.get(key, 0) for counted in ranks) / len(ranks) for key in keys}
        return [{"axis": axis, "collective": name, "bytes": mean} for (axis, name), mean in means.items()]

    def _count(self, name: str, collective: str, args: Any, began: float) -> None:
        # Of these c10d's first argument is the output.
        argument = int(name.startswith("c10d.") and collective in ("reduce_scatter", "all_to_all"))
        tensors = list(_tensors(args[argument]))
        group = _group(args)
        ranks = dist.get_world_size(group)
        size = sum(tensor.nbytes for tensor in tensors if tensor.numel() > 1 and not hasattr(tensor, NOT_TRAFFIC))
        if collective == "all_gather" and name.startswith("_c10d_functional"):
            size *= ranks  # this is the input's size, elsewhere it is the output's
        if size:
            members = tuple(dist.get_process_group_ranks(group))
            axis = self.axes.get(members, "other")
            sent = fraction_sent(collective, ranks) * size
            if collective == "all_to_all":
                axis = self.exchanges.get(members, axis)
            if collective == "all_to_all" and name.startswith("_c10d_functional"):
                rows = args[2]  # to each rank, this one included
                sent = size * (1 - rows[dist.get_rank(group)] / sum(rows))
            self.bytes[axis, collective] += sent
            self.timeline.send(began, axis, collective, sent)


def _ranks(mesh: Any, axis: str) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(mesh[axis].get_group()))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    else:
        for inner in value:
            yield from _tensors(inner)


def _group(args: Any) -> dist.ProcessGroup:
    for value in reversed(args):
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.ProcessGroup.unbox(value)
        if isinstance(value, str):
            try:
                return dist.distributed_c10d._resolve_process_group(value)  # type: ignore[attr-defined, no-any-return, arg-type]
            except (RuntimeError, ValueError):
                continue  # the name of a reduction
    raise RuntimeError("a collective without a process group")
