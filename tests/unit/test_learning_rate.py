"""Optimizer and learning-rate schedule: PyTorch's own numbers, from the step alone."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from shardlab.runtime import optimizers
from shardlab.settings.recipe import OPTIMIZERS, Recipe

TAKES = {
    "betas": (0.8, 0.95),
    "momentum": 0.5,
    "eps": 1e-3,
    "amsgrad": True,
    "nesterov": True,
    "adjust_lr_fn": "match_rms_adamw",
}
"""A value of each argument that some optimizer takes."""


def rates(schedule, steps=12, steps_per_epoch=4):
    recipe = Recipe.model_validate({"optimizer": {"learning_rate": 0.3}, "lr_schedule": schedule})
    return [recipe.learning_rate(step, steps, steps_per_epoch) for step in range(steps)]


def torchs(make, steps=12):
    """The rates of a scheduler of torch.optim.lr_scheduler, stepped after every step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = make(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        ({}, lambda optimizer: lr_scheduler.ConstantLR(optimizer, factor=1.0)),
        ({"name": "step", "gamma": 0.7}, lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7)),
        (
            {"name": "linear", "end": 0.1},
            lambda optimizer: lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=12),
        ),
        (
            {"name": "cosine", "end": 0.1},
            lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=12, eta_min=0.03),
        ),
    ],
)
def test_schedules_are_pytorchs(schedule, make):
    assert rates(schedule) == pytest.approx(torchs(make), rel=1e-12)


def test_the_warm_up_grows_in_equal_parts_and_the_schedule_follows_it():
    seen = rates({"name": "cosine", "warmup_steps": 3})
    assert seen[:3] == pytest.approx([0.3 * part / 4 for part in (1, 2, 3)])
    assert seen[3] == pytest.approx(0.3)
    assert seen[4] == pytest.approx(0.3 * (1 + math.cos(math.pi / 9)) / 2)


def test_a_run_with_more_warm_up_than_steps_still_has_a_rate():
    assert all(rate > 0 for rate in rates({"name": "linear", "warmup_steps": 20}))


@pytest.mark.parametrize("values", [{}, TAKES], ids=["defaults", "arguments"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_set_reaches_the_optimizer(name, values):
    assert {*OPTIMIZERS[name].takes} <= TAKES.keys(), "give each argument a value in TAKES"
    given = {key: values[key] for key in OPTIMIZERS[name].takes if values}
    settings = Recipe.model_validate({"optimizer": {"name": name, "weight_decay": 0.25, "learning_rate": 2.0} | given})
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in ((2, 2), (2,))]
    groups = [
        optimizers.group(optimizers.Own(1.0, 0.25, matrix), [each])
        for matrix, each in zip((True, False), parameters, strict=True)
    ]
    made = optimizers.build(settings, groups)
    assert type(made).__name__.lower() == name
    assert all((group["lr"], group["weight_decay"]) == (2.0, 0.25) for group in made.param_groups)
    for key, value in given.items():  # of muon's groups each has those of its own optimizer
        assert {group[key] for group in made.param_groups if key in group} == {value}
