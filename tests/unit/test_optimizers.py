"""Optimizer: Muon as PyTorch has it, patterns of groups. Schedules and arguments: tests/parity/test_reference.py."""

import pytest
import torch

from helpers.common import build, tiny_run
from shardlab.errors import UserError
from shardlab.runtime import optimizers
from shardlab.runtime.muon import Muon


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
    settings = {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.9, "nesterov": True}
    ours = Muon([{"params": mine, "matrix": True}], arithmetic=torch.bfloat16, **settings)
    reference = torch.optim.Muon(theirs, **settings)
    for _ in range(3):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        ours.step()
        reference.step()
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
