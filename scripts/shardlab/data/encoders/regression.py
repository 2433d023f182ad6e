"""Two vectors: x and y (samples, values), float64."""

import numpy as np

from shardlab.data.encoders import Arrays, Samples, Text
from shardlab.settings.types import DataSet

TEXT = False


def encode(data: DataSet, samples: Samples, text: Text | None) -> Arrays:
    """Arrays of samples (vector, vector)."""
    x, y = (np.stack(column).astype(np.float64) for column in zip(*samples, strict=True))
    return {"x": x, "y": y}
