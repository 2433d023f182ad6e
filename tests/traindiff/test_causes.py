"""Causes that traindiff names for dumps of two trainings, or that it names none."""

import json
import re

import pytest
import torch
from tiny_dumps import DOWN, TENSORS, UP, times
from torch.optim import SGD, AdamW

from traindiff import patterns

SHAPES = {"up.weight": (16, 8), "up.bias": (16,), "down.weight": (8, 16)}
RANKS = ("--ranks", "dp=2", "--ranks", "micro-batches=4")


def adamw(values, **settings):
    return AdamW(values, **{"lr": 1e-3, "weight_decay": 0.1} | settings)


def sgd(values, **settings):
    return SGD(values, **{"lr": 1e-2, "momentum": 0.9} | settings)


def no_decay_of_vectors(values):
    groups = [{"params": values[::2]}, {"params": values[1:2], "weight_decay": 0.0}]
    return AdamW(groups, lr=1e-3, weight_decay=0.1)


def dumps(optimizer=adamw, change=None, rate=None, average=None, dtype=torch.float32, steps=3):
    """Files of a training of three weights whose gradients are given.

    ``change``: (step, name, gradient) to the gradient that is used; ``rate``: step to its learning rate; ``average``:
    write moving averages of the weights, which keep this part of themselves.
    """
    draw = torch.Generator().manual_seed(0)
    values = {name: torch.nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for name, shape in SHAPES.items()}
    own, files = optimizer([*values.values()]), {"initial": {name: value.detach() for name, value in values.items()}}
    files["initial"] = kept = {name: value.clone() for name, value in files["initial"].items()}
    for step in range(steps):
        for name, value in values.items():
            value.grad = torch.randn(SHAPES[name], generator=draw).to(dtype)
            value.grad = change(step, name, value.grad) if change else value.grad
        for group in own.param_groups:
            group["lr"] = rate(step) if rate else group["lr"]
        files[f"gradients-{step}"] = {name: value.grad for name, value in values.items()}
        own.step()
        kept = {
            name: average * kept[name] + (1 - average) * value if average else value.clone()
            for name, value in {name: value.detach() for name, value in values.items()}.items()
        }
        files[f"weights-{step}"] = kept
    return files


def scaled(factor, last_only=False):
    return lambda step, _, gradient: gradient * (factor if step == 2 or not last_only else 1)


def noisy(step, name, gradient):
    return gradient + 0.01 * torch.randn(gradient.shape) if (step, name) == (1, "down.weight") else gradient


def other_everywhere(_, __, gradient):
    return gradient + 0.01 * torch.randn(gradient.shape)


def in_bf16(_, __, gradient):
    return gradient.bfloat16().float()


def with_the_previous(files):
    """The gradient of the first step stays in the second."""
    both = {name: value + files["gradients-0"][name] for name, value in files["gradients-1"].items()}
    return files | {"gradients-1": both}


CASES = {
    "noise in one gradient": ({}, {"change": noisy}, None),
    "noise in all gradients": ({}, {"change": other_everywhere}, None),
    "eps": ({}, {"optimizer": lambda v: adamw(v, eps=1e-3)}, "optimizer settings"),
    "betas": ({}, {"optimizer": lambda v: adamw(v, betas=(0.9, 0.95))}, "optimizer settings"),
    "momentum": ({"optimizer": sgd}, {"optimizer": lambda v: sgd(v, momentum=0.8)}, "optimizer settings"),
    "nesterov": ({"optimizer": sgd}, {"optimizer": lambda v: sgd(v, nesterov=True)}, "optimizer settings"),
    "gradients in bf16": ({}, {"change": in_bf16}, "low precision"),
    "decay of vectors": ({}, {"optimizer": no_decay_of_vectors}, "weight decay"),
    "product of the numbers": ({}, {"change": scaled(8)}, "loss or reduction scaled"),
    "part of a window": ({}, {"change": scaled(0.5, last_only=True)}, "loss or reduction scaled"),
    "targets": ({}, {"change": scaled(80 / 88)}, "loss or reduction scaled"),
    "loss scale": ({}, {"change": scaled(2.0**16)}, "loss scale"),
    "small loss scale": ({}, {"change": scaled(2.0**8)}, "loss scale"),
    "rate 1 % larger": ({}, {"rate": lambda _: 1.01e-3}, "learning rate or its schedule"),
    "schedule steps twice": (
        {"rate": lambda step: 1e-3 * (7 - step) / 7},
        {"rate": lambda step: 1e-3 * (7 - 2 * step) / 7},
        "learning rate or its schedule",
    ),
    "average of the weights": ({}, {"average": 0.9}, "EMA weights"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_cause_explains_the_difference_or_none_is_named(compare, case):
    options, others, cause = CASES[case]
    status, page = compare(dumps(**others), dumps(**options), *RANKS)
    first = f"usual cause: {cause}." if cause else "no known pattern."
    assert status == 1
    assert re.search(r"\*\*First difference: .*; (.*)\*\*", page)[1] == first, page
    assert ("No known pattern explains the difference. Excluded: a factor (leaves " in page) == (cause is None)


@pytest.mark.parametrize(
    ("momentum", "says"),
    [
        (0.0, "step 1, optimizer state (down.weight//momentum_buffer); usual cause: optimizer settings.**"),
        (0.9, "Nothing differs"),
    ],
)
def test_states_that_one_training_does_not_have_count_if_the_updates_differ(compare, momentum, says):
    """SGD without momentum has none, and a trainer may keep its states elsewhere."""
    reference, other = (dumps(lambda values, momentum=each: sgd(values, momentum=momentum)) for each in (0.9, momentum))
    states = {
        f"optimizer-{step}": {f"{name}//momentum_buffer": value for name, value in TENSORS.items()} for step in range(3)
    }
    assert says in compare(other | {name: {} for name in states}, reference | states)[1]


def test_gradients_that_are_not_cleared(compare):
    _, page = compare(with_the_previous(dumps()), dumps())
    assert "step 1, gradient (3 of 3, first down.weight); usual cause: gradients not cleared.**" in page
    assert "The difference is 1 times the gradient of the previous step (this leaves " in page


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            8,
            "8 times the reference's. The factor is the number of ranks along dp times the number of micro-batches or ",
        ),
        (80 / 88, "0.909091 (10/11) times the reference's."),
        (0.75, "0.75 times the reference's. The factor is 3 / the number of micro-batches."),
        (2.0**16, "65536 times the reference's. The factor is 2^16, as of a loss scale."),
        (1 + 2e-6, "1 + 2e-06 times the reference's.\n"),
    ],
)
def test_a_factor_is_named_by_products_quotients_and_loss_scales(compare, change, says):
    precise = {name: value.double() for name, value in TENSORS.items()}
    reference = times(1 / change, precise)
    assert f"Each affected tensor is {says}" in compare({"gradients": precise}, {"gradients": reference}, *RANKS)[1]


def test_the_factor_of_the_updates_is_shown_for_each_step(compare):
    rates = [lambda step: 1e-3 * (7 - step) / 7, lambda step: 1e-3 * (7 - 2 * step) / 7]
    _, page = compare(*(dumps(rate=rate, dtype=torch.float64) for rate in rates))
    assert "The updates' best factor: step 0 1, step 1 1.2, step 2 1.666" in page


def test_clipped_gradients_that_only_one_training_has_are_no_other_settings(compare):
    """With the unclipped ones, the updates of betas (0.9, 0.999) look like those of (0.85, 0.9)."""

    def clipped(step, _, gradient):
        return gradient * (0.85 / 0.9, 1, 1)[step]

    unclipped = {name: each for name, each in dumps().items() if "gradients" in name}
    reference, faster = dumps(change=clipped), dumps(change=clipped, rate=lambda _: 2e-3)
    own = {name.replace("gradients", "clipped"): each for name, each in reference.items() if "gradients" in name}
    _, page = compare(faster | unclipped, reference | own | unclipped)
    assert "usual cause: learning rate or its schedule.**" in page


def test_a_gradient_that_only_one_training_has_is_a_difference(compare):
    frozen = {"gradients-0": {"up.weight": UP}}
    status, page = compare(frozen, {"gradients-0": TENSORS})
    assert (status, "usual cause: no gradient.**" in page) == (1, True)
    assert re.search(r"Without a gradient in `\S+/other`, where it counts as 0: down.weight.", page)
    status, page = compare({"gradients-0": TENSORS}, frozen)
    assert (status, "no known pattern.**" in page) == (1, True)
    assert re.search(r"Without a gradient in `\S+/reference`, where it counts as 0: down.weight.", page)
    assert compare(frozen, {"gradients-0": TENSORS | {"down.weight": 0 * DOWN.T}})[0] == 0


@pytest.mark.parametrize("prefix", ["module.", "module.module.", "_orig_mod.module.", "module._orig_mod."])
def test_the_prefix_of_ddp_is_removed(compare, prefix):
    wrapped = {"gradients-0": {f"{prefix}{name}": value for name, value in TENSORS.items()}}
    assert compare(wrapped, {"gradients-0": TENSORS})[0] == 0
    assert compare(wrapped, {"gradients-0": {"up.weight": UP}}, "--skip", r"(module\.)+down.*")[0] == 0
    mixed = {"gradients-0": {"module.up.weight": UP, "down.weight": DOWN}}
    assert compare(mixed, mixed)[0] == 0


def test_buffers_are_not_updated_by_an_optimizer(compare):
    def with_buffers(calls):
        mean = {"norm.running_mean": calls * torch.ones(4), "norm.num_batches_tracked": torch.tensor(calls)}
        return {"initial": TENSORS | {name: 0 * value for name, value in mean.items()}, "weights-0": times(2) | mean}

    _, page = compare(with_buffers(2), with_buffers(1))
    assert "step 0, buffers (2 of 2, first norm." in page
    assert "usual cause: buffers of the forward pass.**" in page


def test_a_transposed_square_weight(compare):
    square = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    for kind in ("initial", "gradients-0", "weights-0"):
        page = compare({kind: {"up.weight": UP, "x": square.T}}, {kind: {"up.weight": UP, "x": square}})[1]
        assert "(1 of 2, first x); usual cause: transposed.**" in page


def test_only_later_steps_in_low_precision_may_be_rounding(compare):
    same = {"gradients-0": TENSORS, "gradients-1": TENSORS}
    noise = {name: value + 0.2 * torch.randn(value.shape) for name, value in TENSORS.items()}
    says = "In low precision it may be rounding, which grows from step to step: compare with a --twin."
    later = same | {"gradients-1": noise}
    assert says in compare(later, same, "--dtype", "bfloat16")[1]
    assert says not in compare(later, same)[1]
    assert says not in compare(same | {"gradients-0": noise}, same, "--dtype", "bfloat16")[1]


def test_weights_in_lower_precision_are_not_another_seed(compare):
    low = {name: value.half().float() for name, value in TENSORS.items()}
    assert "usual cause: low precision.**" in compare({"initial": low}, {"initial": TENSORS})[1]
    assert "usual cause: initial weights.**" in compare({"initial": times(1.1)}, {"initial": TENSORS})[1]


def test_decay_of_parameters_without_a_gradient(compare):
    unused = {"initial": TENSORS, "gradients-0": {"up.weight": UP, "down.weight": 0 * DOWN.T}}
    after = times(0.99, {"down.weight": TENSORS["down.weight"]}) | {"up.weight": UP}
    _, page = compare(unused | {"weights-0": after}, unused | {"weights-0": TENSORS})
    assert "None of these tensors has a gradient" in page
    assert "usual cause: weight decay without a gradient.**" in page


@pytest.mark.parametrize(
    ("step", "cause"), [(0, "optimizer settings"), (1, "optimizer settings"), (0, None), (1, None)]
)
def test_coefficients_of_moments_explain_an_optimizer_state(compare, step, cause):
    def states(beta):
        gradients = [TENSORS, times(-0.5)]
        mean, found = {name: 0 * value for name, value in TENSORS.items()}, {}
        for number, gradient in enumerate(gradients):
            own = beta if number >= step else 0.9
            mean = {name: own * value + (1 - own) * gradient[name] for name, value in mean.items()}
            mean = {name: value + (value.abs() if cause is None and own != 0.9 else 0) for name, value in mean.items()}
            found |= {f"gradients-{number}": gradient}
            found |= {f"optimizer-{number}": {f"{name}//exp_avg": value for name, value in mean.items()}}
        return found

    _, page = compare(states(0.8), states(0.9))
    assert f"step {step}, optimizer state" in page
    assert (f"usual cause: {cause}.**" if cause else "no known pattern.**") in page


def test_what_a_factor_leaves_is_of_the_difference():
    x, y = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)).double()
    assert patterns.factor(3 * x, x).left < 1e-12
    assert 0.9 < patterns.factor(x + 0.01 * y, x).left <= 1
    assert patterns.factor(1.01 * x + 1e-4 * y, x).left == pytest.approx(1e-2, rel=0.2)


def test_a_gradient_of_another_step_is_named(compare):
    reference = dumps(dtype=torch.float64)
    shifted = {f"gradients-{step}": reference[f"gradients-{step - 1}"] for step in (1, 2)}
    _, page = compare(shifted, reference)
    assert "step 1, gradient (3 of 3, first down.weight); usual cause: another step.**" in page
    assert "The gradients are those of the reference's step 0 (this leaves 0 of it)." in page


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_count_from_1_are_another_step(compare, dtype):
    reference = dumps(dtype=dtype)
    shifted = {f"weights-{step + 1}": reference[f"weights-{step}"] for step in range(3)}
    _, page = compare(shifted, {name: each for name, each in reference.items() if "gradients" not in name})
    assert "usual cause: another step.**" in page


@pytest.mark.parametrize("size", [1e-6, 1e-3])
def test_rounding_of_float32_in_float64_is_not_fitted(compare, size):
    def change(step, _, gradient):
        noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(step)).double()
        return gradient + size * noise * gradient.norm() / noise.norm() if step == 1 else gradient

    _, page = compare(*(dumps(change=each, dtype=torch.float64) for each in (change, None)))
    assert ("usual cause: float32 inside.**" in page, "no known pattern.**" in page) == (size < 1e-5, size > 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_of_rounded_gradients_is_low_precision(compare, dtype):
    def change(_, __, gradient):
        part = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
        return (part.bfloat16() + (gradient - part).bfloat16()).to(dtype)

    assert "usual cause: low precision.**" in compare(*(dumps(change=each, dtype=dtype) for each in (change, None)))[1]


@pytest.mark.parametrize(
    ("shown", "cause"),
    [
        ((1e-3, 2e-3), "learning-rate schedule"),
        ((1e-3, 1e-3), "learning rate not set"),
        ((1e-3, 3e-3), "learning rate or its schedule"),
        ((None, 2e-3), "learning rate or its schedule"),
    ],
)
def test_learning_rates_that_the_trainings_say_count(compare, tmp_path, shown, cause):
    for name, rate in zip(("reference", "other"), shown, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step-0.json").write_text(json.dumps({"learning_rate": rate} if rate else {}))
    _, page = compare(dumps(rate=lambda _: 2e-3), dumps())
    assert f"usual cause: {cause}.**" in page
    assert ("The learning rate of the step is " in page) == (None not in shown)


def test_a_learning_rate_of_0_is_said(compare, tmp_path):
    for name, rate in (("reference", 1e-3), ("other", 0.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step-0.json").write_text(json.dumps({"learning_rate": rate}))
    _, page = compare(dumps(rate=lambda _: 0.0), dumps())
    assert "usual cause: learning-rate schedule.**" in page
