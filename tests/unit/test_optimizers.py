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
from shardlab.settings.recipe import Optimizer


def test_fused_adamw_keeps_no_tensor_layouts_of_former_steps():
    """Affected PyTorch versions leak one per parameter and step: host memory grows (pytorch issue 188174)."""
    counts = []
    with fake_group(2, 0):
        model = torch.nn.Linear(8, 8)
        fully_shard(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",)))
        optimizer = optimizers.build(Optimizer(name="adamw", learning_rate=0.1), model.parameters())
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
        optimizers.own_settings(run.recipe, build(run))
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
