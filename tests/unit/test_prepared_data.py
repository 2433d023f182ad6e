"""What is prepared is what the reader gave: in any layout and parts, in little memory; pictures as Pillow has them.

Others: test_bad_input.py, test_texts.py.
"""

import io
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
from PIL import ExifTags, Image
from tokenizers import Tokenizer

from helpers.common import tiny_run
from shardlab import data as data_sets
from shardlab.data import encoders, store
from shardlab.data.encoders import encode
from shardlab.data.split_file import SplitFile

SPLITS = ("train", "validation", "test")


def data_set(task, **options):
    return tiny_run("mlp").data.model_copy(update={"task": task, "options": options, "name": "mine"})


def all_splits(samples):
    return dict.fromkeys(SPLITS, samples)


def test_any_layout_is_stored_as_the_format_s_own_library_stores_plain_arrays(tmp_path):
    """In parts, which the file does not show."""
    plain = {
        "a": np.arange(24.0).reshape(4, 3, 2).transpose(0, 2, 1),
        "b": np.arange(4, dtype=">i4")[::-1],
        "c": np.broadcast_to(np.array([[1, 2]], np.uint8), (4, 2)),
        "d": np.arange(8, dtype=np.float16).reshape(4, 2)[:, ::2],
    }
    with SplitFile(tmp_path / "train.safetensors", "test") as file:
        for start, end in ((0, 1), (1, 1), (1, 4)):
            file.append({name: array[start:end] for name, array in plain.items()})
        file.save()
    copies = {name: np.array(array.tolist(), array.dtype.newbyteorder("=")) for name, array in plain.items()}
    assert (tmp_path / "train.safetensors").read_bytes() == safetensors.numpy.save(copies)


@pytest.mark.parametrize("workload", ["mnist", "llama2", "xsum"])
def test_the_parts_of_an_encoder_leave_no_trace(tmp_path, monkeypatch, workload):
    data = tiny_run(workload).data

    def prepared(name):
        return store.write(tmp_path / name, data, *encode(data, data_sets.read(data, tmp_path)))

    whole = prepared("whole")
    monkeypatch.setattr(encoders, "PART", 3000)
    in_parts = prepared("parts")
    assert in_parts["fingerprint"] == whole["fingerprint"]
    assert in_parts["counts"] == whole["counts"]


def test_samples_of_train_in_another_split_are_counted(tmp_path):
    data = data_set("regression", inputs=1, outputs=1)
    pairs = {"train": [(x, x) for x in range(9)], "validation": [(3, 3), (7, 7), (3, 8)], "test": [(9, 9), (0, 0)] * 2}
    splits = {name: [([x], [y]) for x, y in each] for name, each in pairs.items()}
    counts = store.write(tmp_path, data, *encode(data, splits))["counts"]
    also = {"samples that are also in train": 2}
    assert counts == {"train": {}, "validation": also, "test": also}


def test_what_an_encoder_leaves_out_is_counted(tmp_path):
    data = data_set("summarization", vocab_size=259, document_tokens=4, summary_tokens=3)
    splits = all_splits([("abcdefg", "ab"), ("abc", "abcdefg"), ("abcd", "abc")])
    counts = store.write(tmp_path / "pairs", data, *encode(data, splits))["counts"]
    assert counts["train"] == {"documents truncated to document_tokens": 2, "summaries truncated to summary_tokens": 2}
    data = data_set("language_modelling", vocab_size=259, sequence_length=3)
    counts = store.write(tmp_path / "text", data, *encode(data, all_splits([("abc",), ("def",)])))["counts"]
    tokens = safetensors.numpy.load_file(tmp_path / "text/train.safetensors")["tokens"]
    text = Tokenizer.from_file(str(tmp_path / "text/tokenizer.json"))
    stream = [*text.encode("abc").ids, 2, *text.encode("def").ids, 2]
    assert tokens.tolist() == [stream[:4], stream[3:7]]
    assert counts["train"] == {"tokens after the last whole window dropped": 1}


WORDS = [bytes(word).decode() for word in np.random.default_rng(0).integers(97, 123, (2000, 6), np.uint8)]


class Made:
    """So many texts, made anew each time that they are read."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return ((" ".join(np.random.default_rng(number).choice(WORDS, 1500)),) for number in range(self.count))


def test_the_memory_of_preparing_does_not_grow_with_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(encoders, "PART", 2**18)
    peaks, data = [], data_set("language_modelling", vocab_size=300, sequence_length=128)
    for count in (20, 80):
        splits = {name: Made(count if name == "train" else 1) for name in SPLITS}
        tracemalloc.start()
        store.write(tmp_path / str(count), data, *encode(data, splits))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


INK = np.random.default_rng(0).integers(0, 256, (8, 8, 4), dtype=np.uint8)
INK[0, 0, 3] = 0
INK[:4] = [0, 0, 0, 0]
INK[2:4, 2:4] = [0, 0, 0, 255]


def pictured(picture, channels=3):
    """The array of a picture, and what was counted."""
    data = data_set("classification", channels=channels, image_size=8, classes=2)
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
