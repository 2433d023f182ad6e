"""Optimizers on sharded parameters."""

import pytest
import torch

from helpers.common import build, tiny_run
from shardlab.errors import UserError
from shardlab.runtime import optimizers
from shardlab.runtime.muon import Muon


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"groups": {"layer.0": {}}}, ["recipe.groups: layer.0 names no parameter", "layers.0"]),
        (
            {"groups": {"layers.*": {}, "layers.1.up": {}}},
            ["both layers.* and layers.1.up name layers.1.up.weight", "narrow one"],
        ),
        ({"groups": {"output": {}}, "freeze": ["output"]}, ["output names no parameter that is trained"]),
        ({"freeze": ["outputs"]}, ["recipe.freeze: outputs names no parameter", "output"]),
        ({"freeze": ["*"]}, ["recipe.freeze names every parameter of the model", "narrow"]),
    ],
)
def test_patterns_that_do_not_fit(recipe, words):
    run = tiny_run("llama2", **recipe)
    with pytest.raises(UserError) as raised:
        optimizers.own_settings(run.recipe, build(run), [])
    assert all(word in str(raised.value) for word in words), raised.value
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("nesterov", "adjust_lr_fn"), [(True, "original"), (False, "match_rms_adamw")])
def test_muon_of_one_process_is_that_of_pytorch(nesterov, adjust_lr_fn):
    """Bit for bit, if it computes in bfloat16 as that does."""
    torch.manual_seed(0)
    mine = [torch.nn.Parameter(torch.randn(size)) for size in ((7, 5), (5, 7), (6, 6))]
    theirs = [torch.nn.Parameter(each.detach().clone()) for each in mine]
    settings = {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.9, "nesterov": nesterov, "adjust_lr_fn": adjust_lr_fn}
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
    assert others == {
        "embedding.weight",
        "output.weight",
        "router.weight",
        "norm.weight",
        "attention_norm.weight",
        "mlp_norm.weight",
    }
    run = tiny_run(
        "moe",
        optimizer={"name": "muon"},
        freeze=["layers.*.attention", "layers.*.experts", "layers.*.shared", "layers.*.router", "output"],
    )
    with pytest.raises(UserError, match="muon updates matrices"):
        optimizers.own_settings(run.recipe, build(run), run.model.experts)
