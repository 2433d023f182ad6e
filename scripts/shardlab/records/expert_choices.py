"""Experts that the tokens of the test split choose, as text in test.json, and the choices in which two runs differ."""

import base64
import io
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 2**18
"""Maximum number of choices in a record: those of the first tokens, which take a hundred kilobytes."""


def encode(choices: NDArray[Any]) -> str:
    """Encode the numbers of chosen experts, (layers, tokens, top_k): sorted per token, compressed, base64."""
    layers, _, top_k = choices.shape
    kept = np.sort(choices[:, : MOST // (layers * top_k)], axis=-1)
    file = io.BytesIO()
    np.save(file, kept.astype(np.min_scalar_type(int(kept.max(initial=0)))))
    return base64.b64encode(zlib.compress(file.getvalue())).decode()


def decode(text: str) -> NDArray[Any]:
    """Return the choices of ``encode``, (layers, tokens, top_k)."""
    choices: NDArray[Any] = np.load(io.BytesIO(zlib.decompress(base64.b64decode(text))), allow_pickle=False)
    return choices


def count_flips(choices: str, reference: str) -> tuple[int, int]:
    """Return how many choices are not among the reference's of the same token and layer, and how many there are."""
    own, other = decode(choices), decode(reference)
    flipped = (own[..., :, None] != other[..., None, :]).all(-1)
    return int(flipped.sum()), own.size
