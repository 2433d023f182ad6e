"""Optimizers on sharded parameters."""

import gc

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from helpers.common import build, tiny_run
from shardlab.errors import UserError
from shardlab.plan.fake_ranks import fake_group
from shardlab.runtime import optimizers
from shardlab.runtime.muon import Muon
from shardlab.settings.recipe import Recipe


def test_fused_adamw_keeps_no_tensor_layouts_of_former_steps():
    """Affected PyTorch versions leak one per parameter and step: host memory grows (pytorch issue 188174)."""
    counts = []
    with fake_group(2, 0):
        model = torch.nn.Linear(8, 8)
        fully_shard(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",)))
        optimizer = optimizers.build(Recipe(), model.parameters())
        for _ in range(50):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            counts.append(sum(type(value) is DTensorSpec for value in gc.get_objects()))
    assert optimizer.defaults["fused"]
    assert max(counts[2:]) <= counts[1]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"layer.0": {}}, ["recipe.groups: layer.0 names no parameter", "layers.0"]),
        ({"layers.9.up.weight": {}}, ["layers.9.up.weight names no parameter", "layers.0.up.weight"]),
        ({"layers.*": {}, "layers.1.up": {}}, ["both layers.* and layers.1.up name layers.1.up.weight", "narrow one"]),
        ({"output": {}}, ["output names no parameter that is trained"]),
    ],
)
def test_patterns_of_groups_that_do_not_fit(groups, words):
    run = tiny_run("llama2", groups=groups, freeze=["output"])
    with pytest.raises(UserError) as raised:
        optimizers.own_settings(run.recipe, build(run), [])
    assert all(word in str(raised.value) for word in words), raised.value
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("freeze", "words"),
    [
        (["outputs"], ["recipe.freeze: outputs names no parameter", "output"]),
        (["*"], ["recipe.freeze names every parameter of the model", "narrow"]),
    ],
)
def test_patterns_of_frozen_parameters_that_do_not_fit(freeze, words):
    with pytest.raises(UserError) as raised:
        build(tiny_run("llama2", freeze=freeze))
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize("adjust_lr_fn", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
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
