"""Two vectors: x and y (samples, values), float64."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.data import Samples
from shardlab.data.encoders import Arrays, parts_of, sized
from shardlab.data.text import Text
from shardlab.settings.types import DataSet

TEXT = False
SAMPLE = "two vectors of `inputs` and `outputs` numbers, or these numbers one by one"


def encode(data: DataSet, samples: Samples, text: Text | None, counts: Counter[str]) -> Iterator[Arrays]:
    """Encode samples (vector, vector), or of a number per column."""
    inputs, outputs = data.options["inputs"], data.options["outputs"]
    pairs = (
        (sample[:inputs], sample[inputs:])
        if len(sample) == inputs + outputs and not any(map(np.ndim, sample))
        else sample
        for sample in sized(samples, 2, inputs + outputs)
    )
    vectors = ((_vector("x", x, inputs), _vector("y", y, outputs)) for x, y in pairs)
    for part in parts_of(vectors, lambda sample: sample[0].nbytes + sample[1].nbytes):
        x, y = (np.stack(column) for column in zip(*part, strict=True))
        yield {"x": x, "y": y}


def blank(options: dict[str, Any], rows: int) -> Arrays:
    """Return such arrays without content."""
    return {"x": np.zeros((rows, options["inputs"])), "y": np.zeros((rows, options["outputs"]))}


def _vector(name: str, values: Any, size: int) -> NDArray[np.float64]:
    array = np.asarray(values)
    if array.dtype.kind not in "biufUO":
        raise ValueError(f"{name} has values of type {array.dtype}, not real numbers")
    vector = array.astype(np.float64)
    if vector.shape != (size,):
        raise ValueError(f"{name} has the shape {vector.shape}, but the workload's shape promises ({size},)")
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} has values that are not finite")
    return vector
