"""Tensor parallelism over all ranks, with a sampler that gives each of them other samples.

torchrun --standalone --nproc-per-node 2 examples/found/other_samples_on_each_rank.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
samples, losses, norms = torch.randn(8, 4), [], []
plan = {"0": ColwiseParallel(), "2": RowwiseParallel(use_local_output=False)}
for sampler in (DistributedSampler(samples, shuffle=False), None):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    model = parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    (batch,) = DataLoader(samples, batch_size=8, sampler=sampler)
    with implicit_replication():  # plain tensors count as the same on all ranks, else PyTorch refuses these targets
        loss = (model(batch) - batch.flip(1)).square().mean()
        loss.backward()
    losses.append(loss.full_tensor().item())
    norms.append(model[0].weight.grad.full_tensor().norm().item())
if dist.get_rank() == 0:
    print(f"loss: wrong {losses[0]:.4f}, right {losses[1]:.4f}")
    print(f"gradient norm: wrong {norms[0]:.4f}, right {norms[1]:.4f}")
