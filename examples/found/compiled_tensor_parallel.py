"""Compiled layers behind a split embedding, under FSDP: the embedding's gradient is zero.

torchrun --standalone --nproc-per-node 2 examples/found/compiled_tensor_parallel.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
plan = {"0": RowwiseParallel(input_layouts=Replicate()), "1.0": ColwiseParallel(), "1.2": RowwiseParallel()}
norms = []
for compiled in (True, False):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    model = parallelize_module(nn.Sequential(nn.Embedding(8, 8), layers), mesh["tp"], plan)
    if compiled:
        model[1] = torch.compile(layers, backend="aot_eager")
    for part in (model[1], model):
        fully_shard(part, mesh=mesh["dp"])
    model(torch.arange(8).view(2, 4)).square().sum().backward()
    norms.append(model[0].weight.grad.full_tensor().norm().item())
if dist.get_rank() == 0:
    print(f"gradient norm of the embedding: wrong {norms[0]:.4f}, right {norms[1]:.4f}")
