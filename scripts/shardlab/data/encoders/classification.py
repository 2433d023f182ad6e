"""Images and labels: images (samples, channels, size, size) uint8, labels (samples) int64."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.data.encoders import Arrays, parts_of, sized
from shardlab.data.pictures import class_number, pixels
from shardlab.data.samples import Samples
from shardlab.data.text import Text
from shardlab.errors import UserError
from shardlab.settings.types import DataSet

TEXT = False
SAMPLE = "an image (a picture, or uint8 of channels x size x size) and its label, an integer from 0"


def encode(data: DataSet, samples: Samples, text: Text | None, counts: Counter[str]) -> Iterator[Arrays]:
    """Encode samples (image, label)."""
    channels, size, classes = data.options["channels"], data.options["image_size"], data.options["classes"]
    background = data.options.get("background", "white")

    def image(value: Any) -> NDArray[np.uint8]:
        array = value if isinstance(value, np.ndarray) else pixels(value, channels, size, background, counts)
        if array.shape != (channels, size, size) or array.dtype != np.uint8:
            raise ValueError(f"the image is {array.dtype} {array.shape}, not uint8 {(channels, size, size)}")
        return array

    converted = ((image(picture), _label(label, classes)) for picture, label in sized(samples, 2))
    for part in parts_of(converted, lambda sample: sample[0].nbytes):
        images, labels = zip(*part, strict=True)
        yield {"images": np.stack(images), "labels": np.array(labels, dtype=np.int64)}


def blank(options: dict[str, Any], rows: int) -> Arrays:
    """Return such arrays without content."""
    images = np.zeros((rows, options["channels"], options["image_size"], options["image_size"]), np.uint8)
    return {"images": images, "labels": np.zeros(rows, np.int64)}


def _label(label: Any, classes: int) -> int:
    """Convert a label to an integer from 0 to ``classes`` - 1."""
    number = class_number(label)
    if number < 0:
        raise ValueError(f"the label is {number}")
    if number >= classes:
        raise UserError(
            f"the label is {number}, but the data set's shape promises {classes} classes; set shape.classes in the "
            "workload's file."
        )
    return number
