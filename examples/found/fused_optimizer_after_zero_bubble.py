"""A zero-bubble pipeline leaves gradients of other strides; fused optimizers on a CPU read them in the wrong order.

torchrun --standalone --nproc-per-node 2 examples/found/fused_optimizer_after_zero_bubble.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble


class Heads(nn.Bilinear):
    """Products of heads that einsum adds up, as in XLNet."""

    def forward(self, x):
        return torch.einsum("bnd,hnd->bh", x.unflatten(-1, (2, 2)), self.weight).tanh()


dist.init_process_group("gloo")
rank, weights = dist.get_rank(), []
for fused in (True, False):
    torch.manual_seed(0)
    layers, batch = nn.Sequential(*(Heads(2, 2, 4, bias=False) for _ in range(4))), torch.randn(4, 4)
    stages = [PipelineStage(layers[number], number, 4, torch.device("cpu")) for number in ((0, 3), (1, 2))[rank]]
    schedule = ScheduleZBVZeroBubble(stages, n_microbatches=4, loss_fn=lambda output, _: output.square().mean())
    schedule.step(*([] if rank else [batch]), target=batch)
    torch.optim.SGD(layers.parameters(), lr=1, fused=fused).step()
    weights.append(layers[3].weight[0, 1, 0].item())
if rank == 0:
    print(f"weight after a step: wrong {weights[0]:.4f}, right {weights[1]:.4f}")
