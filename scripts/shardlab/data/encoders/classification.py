"""Images and labels: images (samples, channels, size, size) uint8, labels (samples) int64."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.data.encoders import Arrays, parts_of
from shardlab.data.samples import Samples
from shardlab.data.text import Text
from shardlab.errors import UserError
from shardlab.settings.types import DataSet

TEXT = False
SAMPLE = "an image (a picture, or uint8 of channels x size x size) and its label, an integer from 0"


def encode(data: DataSet, samples: Samples, text: Text | None, counts: Counter[str]) -> Iterator[Arrays]:
    """Encode samples (image, label)."""
    channels, size, classes = data.options["channels"], data.options["image_size"], data.options["classes"]
    converted = ((_image(image, channels, size), _label(label, classes)) for image, label in samples)
    for part in parts_of(converted, lambda sample: sample[0].nbytes):
        images, labels = zip(*part, strict=True)
        yield {"images": np.stack(images), "labels": np.array(labels, dtype=np.int64)}


def blank(options: dict[str, Any], rows: int) -> Arrays:
    """Return such arrays without content."""
    images = np.zeros((rows, options["channels"], options["image_size"], options["image_size"]), np.uint8)
    return {"images": images, "labels": np.zeros(rows, np.int64)}


def _image(image: Any, channels: int, size: int) -> NDArray[np.uint8]:
    """Convert a PIL image or an array to uint8 (channels, size, size)."""
    if not isinstance(image, np.ndarray):
        image = np.asarray(image.convert("L" if channels == 1 else "RGB").resize((size, size)), dtype=np.uint8)
        image = image[None] if channels == 1 else image.transpose(2, 0, 1)
    if image.shape != (channels, size, size) or image.dtype != np.uint8:
        raise ValueError(f"the image is {image.dtype} {image.shape}, not uint8 {(channels, size, size)}")
    return image


def _label(label: Any, classes: int) -> int:
    """Convert a label to an integer from 0 to ``classes`` - 1."""
    number = int(label)
    if number < 0:
        raise ValueError(f"the label is {number}")
    if number >= classes:
        raise UserError(
            f"the label is {number}, but the data set's shape promises {classes} classes; set shape.classes in the "
            "workload's file."
        )
    return number
