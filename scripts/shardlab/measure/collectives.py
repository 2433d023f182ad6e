"""Benchmark of the collectives that the strategies use: run each one, check its result, and time it.

Sizes and bandwidths are those of nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): the size is that of the
larger buffer, the algorithm bandwidth is size / time, and the bus bandwidth is that times the fraction of the data that
a link has to carry, so that it can be compared with the hardware for any number of ranks.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.measure.traffic import fraction_sent
from shardlab.runtime.device import wait
from shardlab.runtime.distributed import World


@dataclass(frozen=True)
class Trial:
    """One collective on one size, ready to run."""

    run: Callable[[], Any]
    result: Tensor
    """Buffer of this rank's result after ``run``."""
    expected: Tensor
    """Correct result; empty if this rank gets none."""


def held(world: World, rank: int, count: int) -> Tensor:
    """Return (count,) float32 values that differ by rank and position, and whose sums are exact."""
    return torch.arange(count, device=world.device, dtype=torch.float32).remainder(97) + 100 * rank


def everything(world: World, count: int) -> Tensor:
    """Return (ranks, count): the values of each rank."""
    return torch.stack([held(world, rank, count) for rank in range(world.size)])


def _all_gather(world: World, count: int) -> Trial:
    part = count // world.size
    local, result = held(world, world.rank, part), torch.empty(part * world.size, device=world.device)
    return Trial(lambda: dist.all_gather_into_tensor(result, local), result, everything(world, part).flatten())


def _reduce(world: World, count: int) -> Trial:
    value = held(world, world.rank, count)
    expected = everything(world, count).sum(0) if world.is_rank0 else value[:0]
    return Trial(lambda: dist.reduce(value, dst=0), value if world.is_rank0 else value[:0], expected)


def _all_reduce(world: World, count: int) -> Trial:
    value = held(world, world.rank, count)
    return Trial(lambda: dist.all_reduce(value), value, everything(world, count).sum(0))


def _reduce_scatter(world: World, count: int) -> Trial:
    part = count // world.size
    local, result = held(world, world.rank, part * world.size), torch.empty(part, device=world.device)
    expected = everything(world, part * world.size).sum(0).split(part)[world.rank]
    return Trial(lambda: dist.reduce_scatter_tensor(result, local), result, expected)


def _all_to_all(world: World, count: int) -> Trial:
    part = count // world.size
    local, result = held(world, world.rank, part * world.size), torch.empty(part * world.size, device=world.device)
    expected = everything(world, part * world.size).view(world.size, world.size, part)[:, world.rank].flatten()
    return Trial(lambda: dist.all_to_all_single(result, local), result, expected)


def _send_receive(world: World, count: int) -> Trial:
    """Send from each rank to the next one, in a ring."""
    local, result = held(world, world.rank, count), torch.empty(count, device=world.device)
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size

    def run() -> None:
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, local, after), dist.P2POp(dist.irecv, result, before)])
        for work in works:
            work.wait()

    return Trial(run, result, held(world, before, count))


COLLECTIVES: dict[str, Callable[[World, int], Trial]] = {
    "all_gather": _all_gather,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send_receive": _send_receive,
}
"""Name: builds a trial over ``count`` float32 values, the size of the larger buffer."""


def wrong(world: World, count: int = 1024) -> list[str]:
    """Return the names of the collectives whose result is wrong on some rank; a collective itself."""
    local = [name for name, make in COLLECTIVES.items() if not _right(make(world, count))]
    return sorted({name for names in world.gather(local) for name in names})


def measure(world: World, name: str, size: int, repeats: int) -> dict[str, Any]:
    """Measure one collective over ``size`` bytes; a collective.

    ``microseconds`` is the median over ``repeats`` of the slowest rank; bandwidths are in GB/s (1e9 bytes).
    """
    count = max(size // 4 // world.size, 1) * world.size
    make = COLLECTIVES[name]
    right = _right(make(world, count))
    trial = make(world, count)
    for _ in range(3):
        trial.run()
    seconds = [_timed(world, trial.run) for _ in range(repeats)]
    slowest = statistics.median(max(ranks) for ranks in zip(*world.gather(seconds), strict=True))
    # A single rank sends nothing and has no bandwidth.
    factor = fraction_sent("send" if name == "send_receive" else name, world.size)
    return {
        "collective": name,
        "bytes": 4 * count,
        "ranks": world.size,
        "microseconds": slowest * 1e6,
        "algorithm_gb_per_second": 4 * count / slowest / 1e9,
        "bus_gb_per_second": factor * 4 * count / slowest / 1e9,
        "wrong_ranks": world.gather(right).count(False),
    }


def _right(trial: Trial) -> bool:
    trial.run()
    return torch.equal(trial.result.view(-1), trial.expected.reshape(-1))


def _timed(world: World, run: Callable[[], Any]) -> float:
    dist.barrier()
    wait(world.device)
    started = time.perf_counter()
    run()
    wait(world.device)
    return time.perf_counter() - started
