"""How many samples of the other splits are also in train: 8 bytes of memory per sample."""

import hashlib
from array import array

import numpy as np
from numpy.typing import NDArray

from shardlab.data.encoders import Arrays


class Overlap:
    """Digests of the samples of one split after another, of which train is the first."""

    def __init__(self) -> None:
        self._train: NDArray[np.uint64] | None = None
        self._seen = array("Q")

    def add(self, sample: Arrays) -> None:
        """Add a sample of the present split."""
        digest = hashlib.blake2b(digest_size=8)
        for values in sample.values():
            digest.update(values.nbytes.to_bytes(8, "little"))
            digest.update(values.tobytes())
        self._seen.append(int.from_bytes(digest.digest(), "little"))

    def end_of_split(self) -> int:
        """Return how many samples of the split that ends here are also in train, if it is another one."""
        seen, self._seen = np.frombuffer(self._seen, np.uint64), array("Q")
        if self._train is None:
            self._train = seen
            self._train.sort()
            return 0
        places = np.searchsorted(self._train, seen).clip(max=len(self._train) - 1)
        return int((self._train[places] == seen).sum())
