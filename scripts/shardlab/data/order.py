"""Which samples each step trains on: a function of (seed, epoch, step) and of nothing else."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class BatchOrder:
    """The global batches of a training run, the same for any number of ranks.

    The last batch of an epoch has what is left; no sample is dropped or seen twice.
    """

    samples: int
    global_batch: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps in one pass over the samples."""
        return -(-self.samples // self.global_batch)

    def batch(self, step: int) -> Indices:
        """Sample indices (up to global_batch,) of a step, counted from 0 over all epochs."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        start = step_in_epoch * self.global_batch
        return _permutation(self.samples, self.seed, epoch)[start : start + self.global_batch]


@lru_cache(maxsize=1)
def _permutation(samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(samples)


def samples_of(batch: Indices, rank: int, size: int) -> Indices:
    """The part of a global batch that data-parallel rank ``rank`` of ``size`` reads; may be empty."""
    return parts(batch, size)[rank]


def parts(batch: Indices, count: int) -> list[Indices]:
    """A batch in ``count`` consecutive parts, as even as can be; some may be empty."""
    return np.array_split(batch, count)


def in_order(samples: int, batch_size: int) -> list[Indices]:
    """All samples once, in their order, as batches of at most ``batch_size``."""
    return [np.arange(start, min(start + batch_size, samples)) for start in range(0, samples, batch_size)]
