"""Optimizers on sharded parameters."""

import gc

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

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
