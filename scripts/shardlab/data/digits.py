"""The 1,797 handwritten digits in scikit-learn (UCI Optical Recognition, 8 x 8), upscaled to 28 x 28."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from shardlab.data import split
from shardlab.settings.types import DataSet


def read(data: DataSet, raw: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Samples (image, label): image uint8 (1, image_size, image_size), label 0 to 9; the first ``rows``, or all."""
    size, rows = data.options["image_size"], data.options.get("rows")
    digits = load_digits()
    samples = []
    for image, label in zip(digits.images[:rows], digits.target[:rows], strict=True):
        picture = Image.fromarray((image * (255 / 16)).astype(np.uint8)).resize((size, size), Image.Resampling.BILINEAR)
        samples.append((np.asarray(picture)[None], int(label)))
    return split(samples, data.seed)
