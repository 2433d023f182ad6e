"""Images and labels: images (samples, channels, size, size) uint8, labels (samples) int64."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.data import Samples
from shardlab.data.encoders import Arrays, parts_of, sized
from shardlab.data.text import Text
from shardlab.errors import UserError
from shardlab.settings.types import DataSet

TEXT = False
SAMPLE = "an image (a picture, or uint8 of channels x size x size) and its label, an integer from 0"


def encode(data: DataSet, samples: Samples, text: Text | None, counts: Counter[str]) -> Iterator[Arrays]:
    """Encode samples (image, label)."""
    channels, size, classes = data.options["channels"], data.options["image_size"], data.options["classes"]

    def image(value: Any) -> NDArray[np.uint8]:
        array = value if isinstance(value, np.ndarray) else _pixels(value, channels, size, counts)
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


def _pixels(picture: Any, channels: int, size: int, counts: Counter[str]) -> NDArray[np.uint8]:
    """Convert a picture of Pillow to (channels, size, size): gray for one channel, else RGB. Its first frame counts.

    What is transparent shows white. A picture is turned upright, as its EXIF says.

    Raises:
        ValueError: it is no picture, cannot be decoded, or has more than 8 bits per value.
    """
    from PIL import Image, ImageOps  # a job that trains does not have it

    if not isinstance(picture, Image.Image):
        raise ValueError(f"the image is of type {type(picture).__name__}, not a picture of Pillow or an array of uint8")
    try:
        picture.load()
    except Exception as error:  # of decoders, of many types
        raise ValueError(f"the picture cannot be decoded ({error})") from error
    if picture.mode.startswith(("I", "F")):
        raise ValueError(f"the picture has mode {picture.mode}, and only 8 bits per value are read; convert it")
    if getattr(picture, "is_animated", False):
        counts["pictures of several frames, of which the first is used"] += 1
    shown = picture = ImageOps.exif_transpose(picture)
    if picture.has_transparency_data:
        shown = picture.convert("RGBA")
        if shown.getchannel("A").getextrema() != (255, 255):
            counts["transparent pictures put on white"] += 1
            shown = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown)
    mode = "L" if channels == 1 else "RGB"
    if picture.mode != mode:
        counts[f"pictures converted from {picture.mode} to {mode}"] += 1
    if picture.width != picture.height:
        counts["pictures that are not square, squeezed into a square"] += 1
    array = np.asarray(shown.convert(mode).resize((size, size)), dtype=np.uint8)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _label(label: Any, classes: int) -> int:
    """Convert a label to an integer from 0 to ``classes`` - 1: one, a bool, an integer as text, or a float without a
    fraction (as pandas writes integers next to missing values).

    Raises:
        ValueError: it is something else.
        UserError: it is too large.
    """
    try:
        number = int(label)
        whole = isinstance(label, str) or number == label
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise ValueError(
            f"the label is {str(label)[:40]!r}, of type {type(label).__name__}, not an integer; give a class's index"
        )
    if number < 0:
        raise ValueError(f"the label is {number}")
    if number >= classes:
        raise UserError(
            f"the label is {number}, but the data set's shape promises {classes} classes; set shape.classes in the "
            "workload's file."
        )
    return number
