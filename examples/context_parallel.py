"""Context parallelism: each rank has a part of every sequence; attention gathers the keys and values of all parts.

torchrun --nproc-per-node 2 -- examples/context_parallel.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import common


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run, models=("llama",))
    device = common.choose_device(run)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    model.to(device)
    inputs, targets = common.load_data(run, args.data)
    if inputs.shape[1] % ranks:
        common.stop(f"{ranks} ranks do not divide sequences of {inputs.shape[1]}; start a number of ranks that does.")
    length = inputs.shape[1] // ranks
    positions = slice(rank * length, (rank + 1) * length)
    for layer in model.layers:
        layer.attention.first_position = positions.start  # for the rotary angles
        layer.attention.attend = attend_to_all
    # Whole weights on every rank, with the gradient of this rank's positions: DDP adds them up. FSDP would do as well.
    ddp_model = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device])
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output) if rank == 0 else None

    for step, batch in enumerate(common.batches(run, len(inputs))):
        # The same samples on all ranks, of each a part of its positions.
        x, y = inputs[batch, positions].to(device), targets[batch, positions].to(device)
        # All but attention computes each position on its own. The divisor is that of whole sequences.
        loss = common.loss_sum(ddp_model(x), y) / (len(batch) * targets[0].numel())
        # DDP divides the sum of the gradients by the number of ranks; the loss is the ranks' sum.
        (loss * ranks).backward()
        norm = clip_grad_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        if metrics:
            metrics.write(step, loss, norm)

    if rank == 0:
        save_file(model.state_dict(), args.output / "model.safetensors")
    common.finish()


def attend_to_all(query, key, value):
    """Attend from this rank's positions to all positions before them; shapes (batch, heads, length, head_dim)."""
    key, value = GatherSequence.apply(torch.stack((key, value))).unbind(0)
    # Rank r sees the first r + 1 parts: the first rank has the least to do. Giving each rank a part from the head and
    # one from the tail of every sequence would balance that.
    length = query.shape[2]
    end = (dist.get_rank() + 1) * length
    is_before = torch.ones(length, end, dtype=torch.bool, device=query.device).tril(end - length)
    return F.scaled_dot_product_attention(query, key[..., :end, :], value[..., :end, :], is_before, enable_gqa=True)


class GatherSequence(torch.autograd.Function):
    """Concatenates the ranks' parts in dimension -2. Backward: adds up the ranks' gradients of this rank's part."""

    @staticmethod
    def forward(_, part):
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, -2)

    @staticmethod
    def backward(_, gradient):
        gradients = [each.contiguous() for each in gradient.chunk(dist.get_world_size(), -2)]
        own = torch.empty_like(gradients[0])
        dist.reduce_scatter(own, gradients)
        return own


if __name__ == "__main__":
    main()
