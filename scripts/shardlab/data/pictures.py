"""Pictures of any kind to uint8, and labels to integers.

Pillow is imported where it is used: a job that trains does not have it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardlab.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

WIDE = ("I;16", "I;16L", "I;16B", "I;16N")
"""Modes of 16 bits per pixel."""


def pixels(picture: Any, channels: int, size: int, background: str, counts: Counter[str]) -> NDArray[np.uint8]:
    """Convert a picture of Pillow to (channels, size, size): gray for one channel, else RGB. Its first frame counts.

    Values of 16 bits are divided by 257, floats from 0 to 1 are multiplied by 255, and what is transparent shows
    ``background``, a color as CSS writes it. A picture is turned upright, as its EXIF says.

    Raises:
        ValueError: it is no picture, cannot be decoded, or has values of no known range.
        UserError: the background is no color.
    """
    from PIL import Image, ImageOps

    if not isinstance(picture, Image.Image):
        kind = "missing" if picture is None else f"a {type(picture).__name__}"
        raise ValueError(f"the image is {kind}, not a picture of Pillow or an array of uint8")
    # Pillow has no colors of 16 bits: what says that a file has them is gone once it is decoded.
    cut = picture.mode not in WIDE and any(";16" in str(part) for part in getattr(picture, "tile", ()))
    try:
        picture.load()
    except Exception as error:  # of decoders, of many types
        raise ValueError(f"the picture cannot be decoded ({error})") from error
    if getattr(picture, "is_animated", False):
        counts["pictures of several frames, of which the first is used"] += 1
    picture = ImageOps.exif_transpose(picture)
    if cut:
        colors = [picture.getchannel(band).getextrema() for band in picture.getbands() if band != "A"]
        _count_16_bits(max(high for _, high in colors) * 257, counts)
    mode = "L" if channels == 1 else "RGB"
    shown = _composited(_of_8_bits(picture, counts), background, counts)
    if picture.mode != mode:
        counts[f"pictures converted from {picture.mode} to {mode}"] += 1
    if picture.width != picture.height:
        counts["pictures that are not square, squeezed into a square"] += 1
    array = np.asarray(shown.convert(mode).resize((size, size)), dtype=np.uint8)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _of_8_bits(picture: Image.Image, counts: Counter[str]) -> Image.Image:
    from PIL import Image

    if picture.mode in WIDE:
        values = np.asarray(picture).astype(np.uint32)
        _count_16_bits(values.max(), counts)
        gray = Image.fromarray(((values + 128) // 257).astype(np.uint8))
        if (key := picture.info.get("transparency")) is not None:
            gray.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
        return gray
    if picture.mode in ("F", "I"):
        values = np.asarray(picture)
        low, high = values.min(), values.max()
        if picture.mode == "I" or not (low >= 0 and high <= 1):
            raise ValueError(
                f"the picture has mode {picture.mode} and values from {low} to {high}, whose range is not known; "
                "make it one of 8 or 16 bits, or of floats from 0 to 1"
            )
        counts["pictures of floats scaled from 0..1 to 8 bits"] += 1
        return Image.fromarray(np.rint(values * 255).astype(np.uint8))
    return picture


def _count_16_bits(most: int, counts: Counter[str]) -> None:
    counts["pictures of 16 bits scaled to 8"] += 1
    if most < 2**12:
        counts["pictures of 16 bits without a value above 4095, which may be 12 bits"] += 1


def _composited(picture: Image.Image, background: str, counts: Counter[str]) -> Image.Image:
    from PIL import Image, ImageColor

    if not picture.has_transparency_data:
        return picture
    whole = picture.convert("LA") if picture.mode == "La" else picture
    layer = whole.convert("RGBA")
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
    value = (
        label.item() if isinstance(label, np.generic) or (isinstance(label, np.ndarray) and not label.shape) else label
    )
    if isinstance(value, list | tuple | np.ndarray):
        shape = np.shape(value)
        raise ValueError(
            f"the label is a {type(value).__name__} of shape {shape}, not one integer; give a class's index"
        )
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value, re.ASCII):
        return int(value)
    # Decimal is no Real.
    number = value if isinstance(value, Real) or type(value).__name__ == "Decimal" else None
    if number is None or not math.isfinite(number) or number != int(number):
        raise ValueError(f"the label is {str(label)[:40]!r}, of type {type(label).__name__}, not an integer")
    return int(number)
