"""Check of the collectives that the strategies use, over all ranks: the preflight of a site."""

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.runtime.distributed import World


def wrong(world: World, count: int = 1024) -> list[str]:
    """Return the names of the collectives whose result is wrong on some rank; a collective itself.

    Each rank has about ``count`` float32 values, which differ by rank and position, and whose sums are exact.
    """
    rank, size, part = world.rank, world.size, max(1, count // world.size)
    values = torch.arange(part * size, device=world.device, dtype=torch.float32).remainder(97)
    every = torch.stack([values + 100 * each for each in range(size)])
    own, total = every[rank], every.sum(0)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    """Name: the result of this rank, and the right one."""

    gathered = torch.empty_like(every).flatten()
    dist.all_gather_into_tensor(gathered, own)
    found["all_gather"] = gathered, every.flatten()

    dist.reduce(reduced := own.clone(), dst=0)
    found["reduce"] = reduced[: len(own) * world.is_rank0], total[: len(own) * world.is_rank0]

    dist.all_reduce(summed := own.clone())
    found["all_reduce"] = summed, total

    dist.reduce_scatter_tensor(scattered := own.new_empty(part), own)
    found["reduce_scatter"] = scattered, total.split(part)[rank]

    dist.all_to_all_single(exchanged := torch.empty_like(own), own)
    found["all_to_all"] = exchanged, every.view(size, size, part)[:, rank].flatten()

    received, after, before = torch.empty_like(own), (rank + 1) % size, (rank - 1) % size
    pair = dist.P2POp(dist.isend, own, after), dist.P2POp(dist.irecv, received, before)
    for work in dist.batch_isend_irecv([*pair]):
        work.wait()
    found["send_receive"] = received, every[before]

    local = [name for name, (result, expected) in found.items() if not torch.equal(result, expected)]
    return sorted({name for names in world.gather(local) for name in names})
