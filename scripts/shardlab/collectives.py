"""The collectives that the strategies are made of, with the numbers that each must give."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.distributed import World


def wrong(world: World) -> list[str]:
    """Names of the collectives whose result is not what it must be on some rank; a collective itself."""
    return sorted({name for names in world.gather(_wrong_here(world)) for name in names})


def _wrong_here(world: World) -> list[str]:
    return [name for name, check in COLLECTIVES.items() if not check(world)]


def _mine(world: World) -> Tensor:
    """(size,) values that tell ranks and places apart: rank r holds 100 r, 100 r + 1, ..."""
    return torch.arange(world.size, device=world.device, dtype=torch.float32) + 100 * world.rank


def _all(world: World) -> Tensor:
    """(size, size): row r is what rank r holds."""
    rows = torch.arange(world.size, device=world.device, dtype=torch.float32)
    return rows + 100 * rows[:, None]


def _scatter(world: World) -> bool:
    received = torch.empty_like(_mine(world))
    dist.scatter(received, list(_all(world)) if world.main else None, src=0)
    return torch.equal(received, _all(world)[world.rank])


def _gather(world: World) -> bool:
    received = list(torch.empty_like(_all(world))) if world.main else None
    dist.gather(_mine(world), received, dst=0)
    return received is None or torch.equal(torch.stack(received), _all(world))


def _all_gather(world: World) -> bool:
    received = torch.empty_like(_all(world))
    dist.all_gather(list(received), _mine(world))
    return torch.equal(received, _all(world))


def _reduce(world: World) -> bool:
    value = _mine(world)
    dist.reduce(value, dst=0)
    return not world.main or torch.equal(value, _all(world).sum(0))


def _all_reduce(world: World) -> bool:
    value = _mine(world)
    dist.all_reduce(value)
    return torch.equal(value, _all(world).sum(0))


def _reduce_scatter(world: World) -> bool:
    received = torch.empty(1, device=world.device)
    dist.reduce_scatter(received, list(_mine(world).split(1)))
    return torch.equal(received, _all(world).sum(0)[world.rank : world.rank + 1])


COLLECTIVES: dict[str, Callable[[World], bool]] = {
    "scatter": _scatter,
    "gather": _gather,
    "all_gather": _all_gather,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
}
"""Name: whether this rank gets the right numbers."""
