"""Optimizer and learning-rate schedule: PyTorch's own numbers, from the step alone."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from helpers.common import build, tiny_run
from shardlab.errors import UserError
from shardlab.runtime import optimizers
from shardlab.runtime.muon import Muon
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


def rates(schedule):
    """Of 12 steps, 4 of them an epoch."""
    recipe = Recipe.model_validate({"optimizer": {"learning_rate": 0.3}, "lr_schedule": schedule})
    return [recipe.learning_rate(step, 12, 4) for step in range(12)]


@pytest.mark.parametrize(
    ("schedule", "scheduler", "values"),
    [
        ({}, lr_scheduler.ConstantLR, {"factor": 1.0}),
        ({"name": "step", "gamma": 0.7}, lr_scheduler.StepLR, {"step_size": 4, "gamma": 0.7}),
        (
            {"name": "linear", "end": 0.1},
            lr_scheduler.LinearLR,
            {"start_factor": 1.0, "end_factor": 0.1, "total_iters": 12},
        ),
        ({"name": "cosine", "end": 0.1}, lr_scheduler.CosineAnnealingLR, {"T_max": 12, "eta_min": 0.03}),
    ],
)
def test_schedules_are_pytorchs(schedule, scheduler, values):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs, seen = scheduler(optimizer, **values), []
    for _ in range(12):
        seen.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert rates(schedule) == pytest.approx(seen, rel=1e-12)


def test_the_warm_up_grows_in_equal_parts_and_the_schedule_follows_it():
    seen = rates({"name": "cosine", "warmup_steps": 3})
    assert seen[:3] == pytest.approx([0.3 * part / 4 for part in (1, 2, 3)])
    assert seen[3] == pytest.approx(0.3)
    assert seen[4] == pytest.approx(0.3 * (1 + math.cos(math.pi / 9)) / 2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_set_reaches_the_optimizer(name):
    assert {*OPTIMIZERS[name].takes} <= TAKES.keys(), "give each argument a value in TAKES"
    given = {key: TAKES[key] for key in OPTIMIZERS[name].takes}
    settings = Recipe.model_validate({"optimizer": {"name": name, "weight_decay": 0.25, "learning_rate": 2.0} | given})
    groups = [
        optimizers.group(optimizers.Own(1.0, 0.25, len(size) > 1), [torch.nn.Parameter(torch.zeros(size))])
        for size in ((2, 2), (2,))
    ]
    made = optimizers.build(settings, groups)
    assert type(made).__name__.lower() == name
    assert all((group["lr"], group["weight_decay"]) == (2.0, 0.25) for group in made.param_groups)
    for key, value in given.items():  # of muon's groups each has those of its own optimizer
        assert {group[key] for group in made.param_groups if key in group} == {value}


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"groups": {"layer.0": {}}}, "recipe.groups: layer.0 names no parameter.*layers.0"),
        ({"groups": {"layers.*": {}, "layers.1.up": {}}}, r"both layers\.\* and layers\.1\.up name layers.1.up.weight"),
        ({"freeze": ["*"]}, "recipe.freeze names every parameter of the model.*narrow"),
    ],
)
def test_patterns_that_do_not_fit(recipe, words):
    run = tiny_run("llama2", **recipe)
    with pytest.raises(UserError, match=words):
        optimizers.own_settings(run.recipe, build(run), [])


def test_muon_of_one_process_is_that_of_pytorch():
    """Bit for bit, if it computes in bfloat16 as that does."""
    torch.manual_seed(0)
    mine = [torch.nn.Parameter(torch.randn(size)) for size in ((7, 5), (5, 7), (6, 6))]
    theirs = [torch.nn.Parameter(each.detach().clone()) for each in mine]
    settings = {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.9, "nesterov": True, "adjust_lr_fn": "original"}
    ours = Muon([{"params": mine, "matrix": True}], arithmetic=torch.bfloat16, **settings)
    reference = torch.optim.Muon(theirs, **settings)
    for _ in range(3):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        ours.step()
        reference.step()
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_muon_orthogonalizes_matrices_and_experts_but_no_embeddings_nor_what_a_group_takes_out():
    groups = {"output": {"optimizer": "adamw"}, "layers.*.router": {"optimizer": "adamw"}}
    run = tiny_run("moe", optimizer={"name": "muon"}, groups=groups)
    own = optimizers.own_settings(run.recipe, build(run), run.model.experts)
    others = {name.rpartition("layers.")[2].lstrip("0123456789.") for name, each in own.items() if not each.matrix}
    norms = {"norm.weight", "attention_norm.weight", "mlp_norm.weight"}
    assert others == {"embedding.weight", "output.weight", "router.weight"} | norms
