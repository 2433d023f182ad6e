"""traindiff on dumps that it cannot compare: one sentence each."""

import re

import pytest
from tiny_dumps import DOWN, GRADIENTS, TENSORS, UP

DUMPS = {
    "step0/gradients: the names of tensors differ, 1 only in other (layer.up) and 1 only in reference (up); map them "
    "with --rename, as '^module\\.=', or leave them out (--skip).": (
        {"gradients": {"layer.up": UP}},
        {"gradients": {"up": UP}},
    ),
    "up is (4, 4) in other and (8, 4) in reference; merge its shards (--merge), or compare trainings of the same "
    "model.": (
        {"gradients": {"up": UP[:4]}},
        {"gradients": {"up": UP}},
    ),
    "other and reference have no tensors of the same step and kind.": ({"weights": TENSORS}, GRADIENTS),
    "a.x and b.x of other both become x; write --rename so that they differ.": (
        {"gradients": {"a.x": UP, "b.x": DOWN}},
        {"gradients": {"x": UP}},
        *("--rename", r"\w\.="),
    ),
    "up differs between other/gradients.tp0.safetensors and gradients.tp1.safetensors: if these are shards, join them "
    "with --merge 'up=DIM'; if not, all ranks should have the same values, but do not.": (
        {f"gradients.tp{rank}": {"up": UP.chunk(2)[rank]} for rank in (0, 1)},
        {"gradients": {"up": UP}},
    ),
    "epoch=0-step=1.safetensors: its name does not say what it contains; name it gradients-N.safetensors (or clipped, "
    "optimizer, weights; N: the step, from 0), or initial.safetensors.": ({"epoch=0-step=1": TENSORS}, GRADIENTS),
    "other does not exist.": ({}, GRADIENTS),
    "--rename '(up)=\\2' is not a regular expression (invalid group reference 2 at position 1).": (
        *(GRADIENTS, GRADIENTS),
        *("--rename", r"(up)=\2"),
    ),
    "--rename up: write it like this: --rename '^module\\.='.": (
        *(GRADIENTS, GRADIENTS),
        *("--rename", "up"),
    ),
}


@pytest.mark.parametrize("sentence", DUMPS)
def test_bad_dumps_and_options_are_one_sentence(compare, sentence):
    assert compare(*DUMPS[sentence]) == (2, f"error: {sentence}\n")


def test_files_that_are_no_dump_are_one_sentence(compare, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/model.bin").write_bytes(b"PK")
    assert compare({}, GRADIENTS)[1].startswith("error: other has no .safetensors files, which traindiff.dump writes; ")
    (tmp_path / "other/gradients.safetensors").write_bytes(b"not a header")
    assert re.match(r"error: other/gradients.safetensors is not a safetensors file \(", compare({}, GRADIENTS)[1])
    (tmp_path / "other/step-0.json").write_text("{")
    assert re.match(r"error: other/step-0.json cannot be read \(.*\); write it again.\n", compare(GRADIENTS, {})[1])
