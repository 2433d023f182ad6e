"""Pictures of any kind to uint8, and labels to integers.

Pillow is imported where it is used: a job that trains does not have it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardlab.errors import UserError

if TYPE_CHECKING:
    from PIL import Image


def pixels(picture: Any, channels: int, size: int, background: str, counts: Counter[str]) -> NDArray[np.uint8]:
    """Convert a picture of Pillow to (channels, size, size): gray for one channel, else RGB. Its first frame counts.

    What is transparent shows ``background``, a color as CSS writes it. A picture is turned upright, as its EXIF says.

    Raises:
        ValueError: it is no picture, cannot be decoded, or has more than 8 bits per value.
        UserError: the background is no color.
    """
    from PIL import Image, ImageOps

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
    picture = ImageOps.exif_transpose(picture)
    mode = "L" if channels == 1 else "RGB"
    shown = _composited(picture, background, counts)
    if picture.mode != mode:
        counts[f"pictures converted from {picture.mode} to {mode}"] += 1
    if picture.width != picture.height:
        counts["pictures that are not square, squeezed into a square"] += 1
    array = np.asarray(shown.convert(mode).resize((size, size)), dtype=np.uint8)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _composited(picture: Image.Image, background: str, counts: Counter[str]) -> Image.Image:
    from PIL import Image, ImageColor

    if not picture.has_transparency_data:
        return picture
    layer = picture.convert("RGBA")
    if layer.getchannel("A").getextrema() == (255, 255):  # opaque
        return layer
    counts[f"transparent pictures put on {background}"] += 1
    try:
        color = ImageColor.getrgb(str(background))[:3]
    except ValueError:
        raise UserError(
            f"background is {background!r}, which is no color; write one such as white or '#ffffff'."
        ) from None
    below = Image.new("RGBA", layer.size, color)
    return Image.alpha_composite(below, layer)


def class_number(label: Any) -> int:
    """Convert a label to an integer: one, a bool, an integer as text, or a float without a fraction (as pandas writes
    integers next to missing values).

    Raises:
        ValueError: it is something else.
    """
    try:
        number = int(label)
        if isinstance(label, str) or number == label:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(
        f"the label is {str(label)[:40]!r}, of type {type(label).__name__}, not an integer; give a class's index"
    )
