"""Two vectors: x and y (samples, values), float64."""

from typing import Any

import numpy as np

from shardlab.data.encoders import Arrays, Samples, Text
from shardlab.settings.types import DataSet

TEXT = False
SAMPLE = "two vectors of `inputs` and `outputs` numbers"


def encode(data: DataSet, samples: Samples, text: Text | None) -> Arrays:
    """Encode samples (vector, vector)."""
    x, y = (np.stack(column).astype(np.float64) for column in zip(*samples, strict=True))
    for name, array, size in (("x", x, data.options["inputs"]), ("y", y, data.options["outputs"])):
        if array.shape[1:] != (size,):
            raise ValueError(f"{name} has the shape {array.shape[1:]}, but the workload's shape promises ({size},)")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has values that are not finite")
    return {"x": x, "y": y}


def blank(options: dict[str, Any], rows: int) -> Arrays:
    """Return such arrays without content."""
    return {"x": np.zeros((rows, options["inputs"])), "y": np.zeros((rows, options["outputs"]))}
