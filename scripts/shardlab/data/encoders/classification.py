"""Images and labels: images (samples, channels, size, size) uint8, labels (samples) int64."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.data.encoders import Arrays, Samples, Text
from shardlab.errors import UserError
from shardlab.settings.types import DataSet

TEXT = False
SAMPLE = "an image (a picture, or uint8 of channels x size x size) and its label, an integer from 0"


def encode(data: DataSet, samples: Samples, text: Text | None) -> Arrays:
    """Encode samples (image, label).

    Raises:
        UserError: a label exceeds the classes that the workload's file promises.
    """
    channels, size = data.options["channels"], data.options["image_size"]
    images = np.stack([_image(image, channels, size) for image, _ in samples])
    labels = np.array([label for _, label in samples], dtype=np.int64)
    if images.shape[1:] != (channels, size, size) or images.dtype != np.uint8:
        raise ValueError(f"an image is {images.dtype} {images.shape[1:]}, not uint8 {(channels, size, size)}")
    if labels.min() < 0:
        raise ValueError(f"a label is {labels.min()}")
    if labels.max() >= data.options["classes"]:
        raise UserError(
            f"data set {data.name}: a label is {labels.max()}, but its shape promises "
            f"{data.options['classes']} classes; set shape.classes in the workload's file."
        )
    return {"images": images, "labels": labels}


def blank(options: dict[str, Any], rows: int) -> Arrays:
    """Return such arrays without content."""
    images = np.zeros((rows, options["channels"], options["image_size"], options["image_size"]), np.uint8)
    return {"images": images, "labels": np.zeros(rows, np.int64)}


def _image(image: Any, channels: int, size: int) -> NDArray[np.uint8]:
    """Convert a PIL image or an array to uint8 (channels, size, size)."""
    if not isinstance(image, np.ndarray):
        image = np.asarray(image.convert("L" if channels == 1 else "RGB").resize((size, size)), dtype=np.uint8)
        image = image[None] if channels == 1 else image.transpose(2, 0, 1)
    return image
