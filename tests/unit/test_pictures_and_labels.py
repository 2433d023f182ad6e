"""Pictures and labels of any kind become the numbers that Pillow and NumPy alone give. Others: test_bad_input.py."""

import io

import numpy as np
from PIL import ExifTags, Image

from helpers.common import tiny_run
from shardlab.data.encoders import encode

INK = np.random.default_rng(0).integers(0, 256, (8, 8, 4), dtype=np.uint8)
INK[0, 0, 3] = 0
INK[:4] = [0, 0, 0, 0]
INK[2:4, 2:4] = [0, 0, 0, 255]


def pictured(picture, channels=3):
    """The array of a picture, and what was counted."""
    options = {"channels": channels, "image_size": 8, "classes": 2}
    data = tiny_run("mlp").data.model_copy(update={"task": "classification", "options": options})
    made = encode(data, {"train": [(picture, "1")]})
    [part] = made.splits["train"]
    assert part["labels"].tolist() == [1]
    return part["images"][0], +made.counts["train"]


def test_a_picture_is_turned_as_its_exif_says():
    picture, file = Image.fromarray(INK[..., :3]), io.BytesIO()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    picture.save(file, "PNG", exif=exif)
    image, _ = pictured(Image.open(file))
    assert (image.transpose(1, 2, 0) == np.rot90(INK[..., :3], -1)).all()


def test_what_is_transparent_shows_white():
    image, counts = pictured(Image.fromarray(INK))
    alpha = INK[..., 3:].astype(float) / 255
    composited = alpha * INK[..., :3] + (1 - alpha) * 255
    assert abs(image.transpose(1, 2, 0) - composited).max() <= 1
    assert counts["transparent pictures put on white"] == 1


def test_other_modes_are_as_pillow_converts_them():
    for mode in ("RGB", "CMYK", "P", "L"):
        picture = Image.fromarray(INK[..., :3]).convert(mode)
        for channels, target in ((1, "L"), (3, "RGB")):
            image, counts = pictured(picture, channels)
            assert (image.transpose(1, 2, 0).squeeze() == np.asarray(picture.convert(target))).all(), mode
            assert counts == ({} if mode == target else {f"pictures converted from {mode} to {target}": 1})
    _, counts = pictured(Image.new("RGB", (16, 8)))
    assert counts == {"pictures that are not square, squeezed into a square": 1}
