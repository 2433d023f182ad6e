"""traindiff on dumps that it cannot compare: one sentence each."""

import re

import pytest
from tiny_dumps import DOWN, GRADIENTS, TENSORS, UP, dump

LEFT_OUT = "write all tensors in each file of a kind, also of a twin, or leave them out (--skip)."
SHAPES = "merge its shards (--merge), or compare trainings of the same model."
NAMES = "step0/gradients: the names of tensors differ, 1 only in other ({}) and 1 only in reference ({}); map them "
NAMES += "with --rename{}, or leave them out (--skip)."


def up(name, value=UP, file="gradients"):
    return {file: {name: value}}


TWINS = {
    f"twin/step0/gradients.safetensors is missing, or down.weight in it; {LEFT_OUT}": {"weights": TENSORS},
    f"twin/step0/gradients is missing, or down.weight in it; {LEFT_OUT}": up("up.weight"),
    f"down.weight is (2, 8) in twin and (4, 8) in reference; {SHAPES}": {
        "gradients": {name: value[:2] for name, value in TENSORS.items()}
    },
}
DUMPS = {
    NAMES.format("layer.up", "up", " '^layer\\.='"): (up("layer.up"), up("up")),
    NAMES.format("up", "layer.up", " '^=layer.'"): (up("up"), up("layer.up")),
    NAMES.format("layer.up", "up", ""): (
        {"gradients": {"layer.up": UP, "x": DOWN}},
        {"gradients": {"up": UP, "x": DOWN}},
    ),
    f"up is (4, 4) in other and (8, 4) in reference; {SHAPES}": (up("up", UP[:4]), up("up")),
    f"other/initial is missing, or down.weight in it; {LEFT_OUT}": (
        *[up("up.weight", file="initial") | {"weights": TENSORS}] * 2,
    ),
    f"up is (8, 4) in other/step0/weights and (2, 4) in other/initial; {SHAPES}": (
        *[up("up", UP[:2], "initial") | up("up", file="weights")] * 2,
    ),
    "other and reference have no step in common: steps 5 and steps 0; both must number their steps alike.": (
        {"gradients-5": TENSORS},
        GRADIENTS,
    ),
    "other has weights, reference has gradients; they have none of these in common.": ({"weights": TENSORS}, GRADIENTS),
    "other and reference have no tensors of the same step and kind.": (
        {"weights-0": TENSORS, "gradients-1": TENSORS},
        {"weights-1": TENSORS, "gradients-0": TENSORS},
    ),
    "step0/optimizer: the names of tensors differ, 1 only in other (m.up//exp_avg) and 1 only in reference "
    "(up//exp_avg); map them with --rename '^m\\.=', or leave them out (--skip).": (
        up("m.up//exp_avg", file="optimizer-0"),
        up("up//exp_avg", file="optimizer-0"),
    ),
    "other has no tensors in step0/gradients: they did not exist yet, or are kept elsewhere (as by DeepSpeed); "
    "scripts/traindiff/dump.py writes them at the right time and finds them there.": (
        {"weights-0": TENSORS, "gradients-0": {}},
        {"weights-0": TENSORS, "gradients-0": TENSORS},
    ),
    "a.x and b.x of other both become x; write --rename so that they differ.": (
        {"gradients": {"a.x": UP, "b.x": DOWN}},
        up("x"),
        *("--rename", r"\w\.="),
    ),
    "up differs between other/gradients.tp0.safetensors and gradients.tp1.safetensors: if these are shards, join them "
    "with --merge 'up=DIM'; if not, all ranks should have the same values, but do not.": (
        {f"gradients.tp{rank}": {"up": UP.chunk(2)[rank]} for rank in (0, 1)},
        up("up"),
    ),
    "up cannot be joined along dimension 0 (--merge): (8, 3) and (8, 4) in other/gradients.tp0.safetensors and "
    "gradients.tp1.safetensors.": (
        {"gradients.tp0": {"up": UP[:, :3]}, "gradients.tp1": {"up": UP}},
        up("up"),
        *("--merge", "up=0"),
    ),
    "up cannot be joined along dimension 2 (--merge): (8, 4) and (8, 4) in other/gradients.tp0.safetensors and "
    "gradients.tp1.safetensors.": (
        {"gradients.tp0": {"up": UP}, "gradients.tp1": {"up": UP}},
        up("up"),
        *("--merge", "up=2"),
    ),
    "the files of other have no tensors; traindiff.dump writes them.": ({"gradients": {}}, GRADIENTS),
    "epoch=0-step=1.safetensors: its name does not say what it contains; name it gradients-N.safetensors (or clipped, "
    "optimizer, weights; N: the step, from 0), or initial.safetensors.": ({"epoch=0-step=1": TENSORS}, GRADIENTS),
    "other does not exist.": ({}, GRADIENTS),
}
OPTIONS = {
    "rename module.=": "'module.' matches no tensor of other; one of the names is down.weight.",
    "merge up=0": "'up' matches no tensor of other and reference; one of the names is down.weight.",
    "skip qkv": "'qkv' matches no tensor of other and reference; one of the names is down.weight.",
    "rename up": "up: there is no '='; write it like this: --rename '^module\\.='.",
    "merge *up=0": "'*up' is not a regular expression (nothing to repeat at position 0).",
    r"rename up=\1": r"'up=\1': \1 is not a replacement (invalid group reference 1 at position 1).",
    "merge up=rows": "'up=rows': rows is not a number.",
}
"""Options and what they are refused with, after their names."""


@pytest.mark.parametrize("sentence", DUMPS)
def test_bad_dumps_are_one_sentence(compare, sentence):
    assert compare(*DUMPS[sentence]) == (2, f"error: {sentence}\n")


@pytest.mark.parametrize("option", OPTIONS)
def test_bad_options_are_one_sentence(compare, option):
    name, value = option.split()
    assert compare(GRADIENTS, GRADIENTS, f"--{name}", value) == (2, f"error: --{name} {OPTIONS[option]}\n")


@pytest.mark.parametrize("sentence", TWINS)
def test_a_twin_that_does_not_fit_is_one_sentence(compare, tmp_path, sentence):
    twin = dump(tmp_path / "twin", TWINS[sentence])
    assert compare(GRADIENTS, GRADIENTS, "--twin", twin) == (2, f"error: {sentence}\n")


def test_damaged_files_and_empty_folders_are_one_sentence(compare, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/model.bin").write_bytes(b"PK")
    status, said = compare({}, GRADIENTS)
    assert (status, "other has no .safetensors files, which traindiff.dump writes; of another" in said) == (2, True)
    (tmp_path / "other/gradients.safetensors").write_bytes(b"not a header")
    status, said = compare({}, GRADIENTS)
    assert status == 2
    assert re.fullmatch(r"error: other/gradients.safetensors is not a safetensors file \(.*\); write it again.\n", said)
    (tmp_path / "other/step-0.json").write_text("{")
    assert re.match(r"error: other/step-0.json cannot be read \(.*\); write it again.\n", compare(GRADIENTS, {})[1])
    (tmp_path / "other/step-0.json").unlink()
    whole = (tmp_path / "reference/gradients.safetensors").read_bytes()
    (tmp_path / "other/gradients.safetensors").write_bytes(whole[:-8])
    assert compare({}, GRADIENTS)[0] == 2
