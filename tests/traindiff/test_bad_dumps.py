"""traindiff on dumps that it cannot compare: one sentence each."""

import re

import pytest
from tiny_dumps import DOWN, GRADIENTS, TENSORS, UP, dump

LEFT_OUT = "write all tensors in each file of a kind, also of a twin, or leave them out (--skip)."


@pytest.mark.parametrize(
    ("twin", "says"),
    [
        ({"weights": TENSORS}, f"twin/step0/gradients.safetensors is missing, or down.weight in it; {LEFT_OUT}"),
        ({"gradients": {"up.weight": UP}}, f"twin/step0/gradients is missing, or down.weight in it; {LEFT_OUT}"),
        (
            {"gradients": {name: value[:2] for name, value in TENSORS.items()}},
            "down.weight is (2, 8) in twin and (4, 8) in reference; merge its shards (--merge), or compare trainings "
            "of the same model.",
        ),
    ],
)
def test_a_twin_that_does_not_fit_is_one_sentence(compare, tmp_path, twin, says):
    folder = dump(tmp_path / "twin", twin)
    assert compare(GRADIENTS, GRADIENTS, "--twin", folder) == (2, f"error: {says}\n")


BAD = {
    "names": (
        {"gradients": {"layer.up": UP}},
        {"gradients": {"up": UP}},
        [],
        "step0/gradients: the names of tensors differ, 1 only in other (layer.up) and 1 only in reference (up); map "
        "them with --rename '^layer\\.=', or leave them out (--skip).",
    ),
    "names below a module": (
        {"gradients": {"up": UP}},
        {"gradients": {"layer.up": UP}},
        [],
        "step0/gradients: the names of tensors differ, 1 only in other (up) and 1 only in reference (layer.up); map "
        "them with --rename '^=layer.', or leave them out (--skip).",
    ),
    "one name of two": (
        {"gradients": {"layer.up": UP, "down": DOWN}},
        {"gradients": {"up": UP, "down": DOWN}},
        [],
        "step0/gradients: the names of tensors differ, 1 only in other (layer.up) and 1 only in reference (up); map "
        "them with --rename, or leave them out (--skip).",
    ),
    "shapes": (
        {"gradients": {"up": UP[:4]}},
        {"gradients": {"up": UP}},
        [],
        "up is (4, 4) in other and (8, 4) in reference; merge its shards (--merge), or compare trainings of the same "
        "model.",
    ),
    "weights before a step": (
        {"initial": {"up.weight": UP}, "weights": TENSORS},
        {"initial": {"up.weight": UP}, "weights": TENSORS},
        [],
        f"other/initial is missing, or down.weight in it; {LEFT_OUT}",
    ),
    "shapes before a step": (
        {"initial": {"up": UP[:2]}, "weights": {"up": UP}},
        {"initial": {"up": UP[:2]}, "weights": {"up": UP}},
        [],
        "up is (8, 4) in other/step0/weights and (2, 4) in other/initial; merge its shards (--merge), or compare "
        "trainings of the same model.",
    ),
    "steps": (
        {"gradients-5": TENSORS},
        {"gradients-0": TENSORS},
        [],
        "other and reference have no step in common: steps 5 and steps 0; both must number their steps alike.",
    ),
    "kinds": (
        {"weights": TENSORS},
        GRADIENTS,
        [],
        "other has weights, reference has gradients; they have none of these in common.",
    ),
    "no kind of a step": (
        {"weights-0": TENSORS, "gradients-1": TENSORS},
        {"weights-1": TENSORS, "gradients-0": TENSORS},
        [],
        "other and reference have no tensors of the same step and kind.",
    ),
    "unused rename": (
        GRADIENTS,
        GRADIENTS,
        ["--rename", "module.="],
        "--rename 'module.' matches no tensor of other; one of the names is down.weight.",
    ),
    "unused merge": (
        GRADIENTS,
        GRADIENTS,
        ["--merge", "up=0"],
        "--merge 'up' matches no tensor of other and reference; one of the names is down.weight.",
    ),
    "unused skip": (
        GRADIENTS,
        GRADIENTS,
        ["--skip", "qkv"],
        "--skip 'qkv' matches no tensor of other and reference; one of the names is down.weight.",
    ),
    "two of a name": (
        {"gradients": {"a.x": UP, "b.x": DOWN}},
        {"gradients": {"x": UP}},
        ["--rename", r"\w\.="],
        "a.x and b.x of other both become x; write --rename so that they differ.",
    ),
    "shards that are not merged": (
        {"gradients.tp0": {"up": UP[:4]}, "gradients.tp1": {"up": UP[4:]}},
        {"gradients": {"up": UP}},
        [],
        "up differs between other/gradients.tp0.safetensors and gradients.tp1.safetensors: if these are shards, join "
        "them with --merge 'up=DIM'; if not, all ranks should have the same values, but do not.",
    ),
    "shards that do not fit": (
        {"gradients.tp0": {"up": UP[:, :3]}, "gradients.tp1": {"up": UP}},
        {"gradients": {"up": UP}},
        ["--merge", "up=0"],
        "up cannot be joined along dimension 0 (--merge): (8, 3) and (8, 4) in other/gradients.tp0.safetensors and "
        "gradients.tp1.safetensors.",
    ),
    "no such dimension": (
        {"gradients.tp0": {"up": UP}, "gradients.tp1": {"up": UP}},
        {"gradients": {"up": UP}},
        ["--merge", "up=2"],
        "up cannot be joined along dimension 2 (--merge): (8, 4) and (8, 4) in other/gradients.tp0.safetensors and "
        "gradients.tp1.safetensors.",
    ),
    "no tensors": (
        {"gradients": {}},
        GRADIENTS,
        [],
        "the files of other have no tensors; traindiff.dump writes them.",
    ),
    "no name of a kind": (
        {"epoch=0-step=1": TENSORS},
        GRADIENTS,
        [],
        "epoch=0-step=1.safetensors: its name does not say what it contains; name it gradients-N.safetensors (or "
        "clipped, optimizer, weights; N: the step, from 0), or initial.safetensors.",
    ),
    "no files": ({}, GRADIENTS, [], "other does not exist."),
    "no replacement": (
        GRADIENTS,
        GRADIENTS,
        ["--rename", "up"],
        "--rename up: there is no '='; write it like this: --rename '^module\\.='.",
    ),
    "no expression": (
        GRADIENTS,
        GRADIENTS,
        ["--merge", "*up=0"],
        "--merge '*up' is not a regular expression (nothing to repeat at position 0).",
    ),
    "no group": (
        GRADIENTS,
        GRADIENTS,
        ["--rename", r"up=\1"],
        r"--rename 'up=\1': \1 is not a replacement (invalid group reference 1 at position 1).",
    ),
    "no dimension": (GRADIENTS, GRADIENTS, ["--merge", "up=rows"], "--merge 'up=rows': rows is not a number."),
    "no degree": (GRADIENTS, GRADIENTS, ["--ranks", "dp=0"], "--ranks 'dp=0': 0 is not a positive number."),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(compare, case):
    other, reference, options, sentence = BAD[case]
    assert compare(other, reference, *options) == (2, f"error: {sentence}\n")


def test_damaged_files_and_empty_folders_are_one_sentence(compare, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/model.bin").write_bytes(b"PK")
    status, said = compare({}, GRADIENTS)
    assert (status, "other has no .safetensors files, which traindiff.dump writes; of another" in said) == (2, True)
    (tmp_path / "other/gradients.safetensors").write_bytes(b"not a header")
    status, said = compare({}, GRADIENTS)
    assert status == 2
    assert re.fullmatch(r"error: other/gradients.safetensors is not a safetensors file \(.*\); write it again.\n", said)
    whole = (tmp_path / "reference/gradients.safetensors").read_bytes()
    (tmp_path / "other/gradients.safetensors").write_bytes(whole[:-8])
    assert compare({}, GRADIENTS)[0] == 2
