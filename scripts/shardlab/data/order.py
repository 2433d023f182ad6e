"""Batch order: the samples of each step, a pure function of (seed, epoch, step)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class BatchOrder:
    """Global batches of a training run, the same for any number of ranks.

    The last batch of an epoch has the remaining samples; no sample is dropped or repeated.
    """

    samples: int
    global_batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in one pass over the samples."""
        return -(-self.samples // self.global_batch_size)

    def batch(self, step: int) -> Indices:
        """Return the sample indices (up to global_batch_size,) of a step, counted from 0 over all epochs."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        start = step_in_epoch * self.global_batch_size
        return _permutation(self.samples, self.seed, epoch)[start : start + self.global_batch_size]


@lru_cache(maxsize=1)
def _permutation(samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(samples)


def samples_of(batch: Indices, rank: int, size: int) -> Indices:
    """Return the part of a global batch that data-parallel rank ``rank`` of ``size`` reads; may be empty."""
    return parts(batch, size)[rank]


def parts(batch: Indices, count: int) -> list[Indices]:
    """Split a batch into ``count`` consecutive parts, as even as possible; some may be empty."""
    return np.array_split(batch, count)


def in_order(samples: int, batch_size: int) -> list[Indices]:
    """Return all samples once, in order, as batches of at most ``batch_size``."""
    return [np.arange(start, min(start + batch_size, samples)) for start in range(0, samples, batch_size)]
