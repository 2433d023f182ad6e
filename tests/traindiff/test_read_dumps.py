"""traindiff on dumps of other trainers: names, shards, steps and dtypes."""

import pytest
import torch
from tiny_dumps import GRADIENTS, TENSORS, UP, times

START = {"initial": TENSORS}
LOW = {name: value.bfloat16() for name, value in TENSORS.items()}
STEPS = {f"gradients-{step}": TENSORS for step in range(4)}
SHARDS = {
    f"gradients-0.tp{rank}": {
        "module.up.linear.weight": UP.chunk(2)[rank],
        "module.down.linear.weight": TENSORS["down.weight"].chunk(2, 1)[rank],
        "module.norm": torch.ones(3),
    }
    for rank in range(2)
}
WRAPPED = {f"module._orig_mod.{name}": value for name, value in (TENSORS | {"norm": torch.ones(3)}).items()}
RULES = ["--rename", r"^module\.(?=\w)=", "--rename", r"\.linear=", "--merge", r"up\..*=0", "--merge", "down.*=1"]
COUNT = torch.arange(24.0)


def with_buffers(calls):
    mean = {"norm.running_mean": calls * torch.ones(4), "norm.num_batches_tracked": torch.tensor(calls)}
    return {"initial": TENSORS | {name: 0 * value for name, value in mean.items()}, "weights-0": times(2) | mean}


SAME = {
    "steps that only one has": ({name: STEPS[name] for name in ("gradients-0", "gradients-1")}, STEPS),
    "shards, joined in the order of the ranks": (SHARDS, {"gradients-0": WRAPPED}, *RULES),
    "rank 10 after rank 9": (
        {f"gradients.rank{rank}": {"x": COUNT[2 * rank : 2 * rank + 2]} for rank in range(12)},
        {"gradients": {"x": COUNT}},
        *("--merge", "x=0"),
    ),
    "tensors left out": ({"gradients": TENSORS | {"qkv": torch.ones(2)}}, GRADIENTS, "--skip", "qkv.*"),
    "bf16": ({"gradients": LOW}, GRADIENTS),
    "float32 files of a training in bf16": (
        {"gradients": {name: value.float() for name, value in LOW.items()}},
        GRADIENTS,
        *("--dtype", "bfloat16"),
    ),
}
NOTES = {
    "steps that only one has": ["Steps 2-3 are only in `", "**Nothing differs in steps 0-1.**"],
    "shards, joined in the order of the ranks": ["| 0 | gradient | 3 | 0.0e+00 |"],
}


@pytest.mark.parametrize("case", SAME)
def test_what_is_equal(compare, case):
    status, page = compare(*SAME[case])
    assert (status, "**Nothing differs in step" in page) == (0, True), page
    assert all(note in page for note in NOTES.get(case, [])), page


DIFFERENT = {
    "updates": (
        (START | {"weights-0": times(1.5)}, START | {"weights-0": times(1.25)}),
        "update (2 of 2, first down.weight); cause: updates times 2.**",
    ),
    "one tensor in bf16 loosens no other": (
        ({"gradients": times(1.01)}, {"gradients": TENSORS | {"down.weight": LOW["down.weight"]}}),
        "gradient (1 of 2, first up.weight)",
    ),
    "buffers are not updated by an optimizer": (
        (with_buffers(2), with_buffers(1)),
        "step 0, buffers (2 of 2, first norm.",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs(compare, case):
    given, words = DIFFERENT[case]
    status, page = compare(*given)
    assert (status, words in page) == (1, True), page


@pytest.mark.parametrize(
    ("value", "sides", "says"),
    [
        ("nan", (0,), "up.weight has values that are not a number: 1 of 32, in this training."),
        ("nan", (0, 1), "up.weight has values that are not a number: 1 of 32, in both."),
        ("inf", (0, 1), "**Nothing differs"),
    ],
)
def test_nan_and_inf_are_findings(compare, value, sides, says):
    wrong = {**TENSORS, "up.weight": UP.clone()}
    wrong["up.weight"][2, 1] = float(value)
    status, page = compare(*({"gradients": wrong if side in sides else TENSORS} for side in (0, 1)))
    assert (status, says in page) == (value == "nan", True), page
