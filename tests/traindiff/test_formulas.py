"""Causes are named where a formula holds, and nowhere else: faults of trainers, and trainings that are right."""

import json
import re
import shutil

import planted
import pytest
import torch
from tiny_dumps import DOWN, TENSORS, UP, compared, times

from traindiff.diagnosis import markdown
from traindiff.dump import hashes


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Folder of the trainings, which are too small for two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path_factory.mktemp("trainings")
    torch.set_num_threads(threads)


LOOPS = planted.ONE | planted.RANKS
COMPARED = {name: (loop["reference"], loop["says"]) for name, loop in LOOPS.items() if "says" in loop}


@pytest.fixture(scope="module")
def dumps(server, folder):
    """Folder with the dumps of planted.py, on one rank and on two."""
    planted.main(folder)
    server.run(planted.__file__, [folder], 2, folder / "log")
    return folder


@pytest.mark.parametrize("name", COMPARED)
def test_dumps_of_loops(dumps, name):
    reference, expected = COMPARED[name]
    found = compared(dumps / name, dumps / reference)
    page = markdown(found, name)
    if expected is None:
        assert found.first is None, page
        return
    causes = " | ".join(cause.name for cause in found.causes)
    named = re.sub(r"\b[0-9a-f]{16}\b", "#", f"{found.first.kind}; {causes}")
    assert named.startswith(expected), page
    assert named == expected or expected.endswith(": "), page


def test_what_is_split_over_ranks_by_hand_is_refused(dumps):
    tensors, optimizer = (dumps / "refused").read_text().splitlines()
    assert tensors.startswith("0.weight is not the same on this rank and on rank 1.")
    assert "--merge 'NAME=DIM'" in tensors
    assert optimizer.startswith("The optimizers of this rank and of rank 1 do not have the same parameters (first 0.bi")


def test_a_moment_that_cancels_has_the_rounding_of_what_it_sums(compare):
    moments = [
        {f"optimizer-{step}": {"up.weight//exp_avg": UP * size} for step, size in enumerate((1, part))}
        for part in (1e-3, 1.5e-3)
    ]
    assert compare(*moments)[0] == 0
    assert compare(moments[0] | {"optimizer-1": {"up.weight//exp_avg": 2.1e-3 * UP}}, moments[0])[0] == 1


def test_an_equal_update_is_equal_with_a_note(dumps):
    page = markdown(compared(dumps / "reduced in the optimizer", dumps / "plain"), "")
    assert "Steps 0-3: gradient differs (0.bias: " in page
    assert "4 differ, see above |" in page


def test_the_page_has_the_weights_of_samples_with_the_ranks_that_read_them(dumps):
    page = markdown(compared(dumps / "last micro-batch not reduced", dumps / "plain"), "")
    rows = re.findall(r"^\| \w{16} \| (\d/\d) \| (\d) \|$", page, re.MULTILINE)
    assert rows == [
        (block, weight) for block, weight in (("0/0", "1"), ("0/1", "2"), ("1/0", "1"), ("1/1", "0")) for _ in "ab"
    ]


# Files alone


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (8, "a factor of 8 (as is the number of ranks times the number of micro-batches)."),
        (2.0**16, "a factor of 65536, 2^16, as of a loss scale."),
        (1 + 2e-6, "a factor of 1 + 2e-06."),
    ],
)
def test_a_factor_is_said_by_the_numbers_that_are_known(compare, tmp_path, change, says):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/step-0.json").write_text('{"world_size": 2, "micro_batches": 4}')
    precise = {name: value.double() for name, value in TENSORS.items()}
    assert f"; cause: {says}" in compare({"gradients": times(change, precise)}, {"gradients": precise})[1]


PRECISE = {name: value.double() / 3 for name, value in TENSORS.items()}


@pytest.mark.parametrize(
    ("own", "usual", "says"),
    [
        # A little noise; a factor with noise in one tensor; too few values; a constant.
        ({"gradients": {"x": PRECISE["up.weight"] + 1e-7 * DOWN}}, {"gradients": {"x": PRECISE["up.weight"]}}, ""),
        ({"gradients": times(2) | {"up.weight": 2 * UP + 0.01 * DOWN}}, {"gradients": TENSORS}, ""),
        ({"gradients": {"x": 2 * UP[0, :1]}}, {"gradients": {"x": UP[0, :1]}}, ""),
        ({"weights-0": {"norm.weight": UP[0] / UP[0]}}, {"weights-0": {"norm.weight": 1 + UP[0] / 100}}, ""),
        (
            {"gradients": TENSORS, "clipped": times(3)},
            {"gradients": TENSORS, "clipped": times(0.1)},
            "cause: a factor of 30",
        ),
    ],
)
def test_a_cause_is_named_where_its_formula_leaves_rounding_of_each_tensor(compare, own, usual, says):
    assert f"; {says or 'no formula fits'}.**" in compare(own, usual)[1]


def test_a_gradient_that_only_one_training_has_is_a_difference(compare):
    frozen = {"gradients-0": {"up.weight": UP}}
    assert "cause: no gradient: down.weight.**" in compare(frozen, {"gradients-0": TENSORS})[1]
    page = compare({"gradients-0": TENSORS}, frozen)[1]
    assert re.search(r"Without a gradient in `\S+/reference`, where it counts as 0: down.weight.", page)
    assert compare(frozen, {"gradients-0": TENSORS | {"down.weight": 0 * DOWN.T}})[0] == 0
    # With a rate of 0, as without a gradient: the updates are equal.
    moves = {"initial": TENSORS, "weights-0": TENSORS | {"up.weight": 2 * UP}}
    assert compare(frozen | moves, {"gradients-0": TENSORS} | moves)[0] == 0


def test_rows_of_ids_are_named_by_all_of_them_but_padding():
    row, other, padded, more = ([ids] for ids in ([7, 1, 2, 8], [7, 1, 2, 9], [7, 1, 2, 0], [7, 1, 2, 0, 0]))
    assert hashes(torch.tensor(row)) != hashes(torch.tensor(other))
    assert hashes(torch.tensor(padded)) == hashes(torch.tensor(more))


def test_samples_with_other_names_are_the_same_ones_if_numbers_say_so(compare, tmp_path):
    for name, ids in (("other", "[[1, 2]]"), ("reference", "[[3, 4]]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step-0.json").write_text(f'{{"ids": {ids}}}')
    assert compare({"gradients-0": TENSORS}, {"gradients-0": TENSORS})[0] == 0
    assert (
        "gradient (2 of 2, first down.weight); cause: a factor of 3"
        in compare({"gradients-0": times(3)}, {"gradients-0": TENSORS})[1]
    )
    page = compare({"gradients-0": {"up.weight": DOWN}}, {"gradients-0": {"up.weight": UP}})[1]
    assert "step 0, samples; cause: other samples: the reference reads none of them" in page


def test_a_state_that_one_optimizer_lacks_and_a_loss_that_differs_alone_are_named(dumps, tmp_path):
    page = markdown(compared(dumps / "biases left out", dumps / "plain"), "")
    assert "- Only one of the optimizers has exp_avg, exp_avg_sq of 0.bias, 2.bias." in page
    shutil.copytree(dumps / "plain", tmp_path / "other")
    facts = tmp_path / "other/step-0.json"
    shown = json.loads(facts.read_text())
    facts.write_text(json.dumps(shown | {"reported_loss": 2 * shown["loss"]}))
    page = markdown(compared(tmp_path / "other", dumps / "plain"), "")
    assert "First difference: step 0, reported loss; no formula fits." in page
    assert "- Gradients and updates of this step, where they are compared, are equal: the loss alone differs." in page
