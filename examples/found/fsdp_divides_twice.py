"""FSDP2 on a mesh of one rank divides by set_gradient_divide_factor twice, in float64 and float16.

torchrun --standalone --nproc-per-node 2 examples/found/fsdp_divides_twice.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("ep", "fsdp"))
for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16):
    layer = fully_shard(nn.Linear(1, 1, bias=False, dtype=dtype), mesh=mesh["fsdp"])
    layer.set_gradient_divide_factor(4)
    layer(torch.ones(1, 1, dtype=dtype)).sum().backward()
    found = layer.weight.grad.full_tensor().item()
    if dist.get_rank() == 0:
        word = "wrong" if dtype in (torch.float64, torch.float16) else "found"
        print(f"gradient in {dtype}: {word} {found}, right {1 / 4}")
