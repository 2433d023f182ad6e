"""FSDP2 with reduce_dtype float32: over a tensor-parallel mesh, the gradients of a norm are added in bfloat16.

torchrun --standalone --nproc-per-node 2 examples/found/fsdp_reduce_dtype.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
norm = parallelize_module(nn.RMSNorm(2), mesh["tp"], SequenceParallel())
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
fully_shard(norm, mesh=mesh["dp"], mp_policy=policy)
token = norm(torch.ones(1, 1, 2)).to_local()  # one token of the sequence per rank
(token * (256, 1)[dist.get_rank()]).sum().backward()
if dist.get_rank() == 0:
    print(f"256 + 1: wrong {norm.weight.grad.to_local()[0].item():.0f}, right 257")
