"""log_softmax inside loss_parallel, without a cross-entropy: its gradient is that of the identity.

torchrun --standalone --nproc-per-node 2 examples/found/loss_parallel_log_softmax.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

dist.init_process_group("gloo")
whole = torch.arange(4.0).view(1, 4).requires_grad_()
whole.log_softmax(-1)[0, 0].backward()
mesh = init_device_mesh("cpu", (2,))
split = distribute_tensor(whole.detach(), mesh, [Shard(1)]).requires_grad_()
chosen = distribute_tensor(torch.eye(4)[:1], mesh, [Shard(1)])
with loss_parallel():
    (split.log_softmax(-1) * chosen).sum().backward()
wrong, right = split.grad.full_tensor(), whole.grad
if dist.get_rank() == 0:
    for token in range(4):
        print(f"gradient of logit {token}: wrong {wrong[0, token]:.4f}, right {right[0, token]:.4f}")
