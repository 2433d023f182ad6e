"""Pipeline parallelism: each rank has some of the layers; micro-batches pass them one after the other.

torchrun --nproc-per-node 2 -- examples/pipeline.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import math
from functools import cache

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

import common

MICRO_BATCHES = 4
"""Of a batch: while a rank computes one, the next rank has the one before. With p ranks and m micro-batches each rank
waits (p - 1) / (m + p - 1) of the time, the bubble.
"""


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run)
    device = common.choose_device(run)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    with torch.device("meta"):
        model = common.build_model(run)
    # This rank keeps its part of the chain. The others' modules become identities, so that names stay the same.
    for stage, names in enumerate(common.split(model, ranks)):
        for name in names if stage != rank else ():
            model.set_submodule(name, nn.Identity())
    model.to_empty(device=device)
    with safe_open(args.weights, "pt") as file:  # only this rank's tensors are read
        model.load_state_dict({name: file.get_tensor(name) for name in model.state_dict()})
    inputs, targets = common.load_data(run, args.data)
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output) if rank == 0 else None

    @cache  # a stage has buffers for activations of one shape: the last batch of an epoch needs other ones
    def schedule_for(rows):
        # GPipe: all forward passes, then all backward passes. Schedule1F1B takes turns, and so keeps fewer activations.
        return ScheduleGPipe(
            PipelineStage(model, rank, ranks, device),
            math.gcd(rows, MICRO_BATCHES),  # all micro-batches have the same number of rows
            # The divisor is that of the whole batch: its gradient is the sum over the micro-batches.
            loss_fn=lambda outputs, y: common.loss_sum(outputs, y) / (rows * targets[0].numel()),
            scale_grads=False,
        )

    for step, batch in enumerate(common.batches(run, len(inputs))):
        x, y = inputs[batch].to(device), targets[batch].to(device)
        losses = []  # of the micro-batches, on the last rank
        # Forward and backward: the first rank has the inputs, the others receive activations of the rank before.
        schedule_for(len(batch)).step(*([x] if rank == 0 else []), target=y, losses=losses)
        # The norm over the layers of all ranks.
        square = get_total_norm([parameter.grad for parameter in model.parameters()]).square()
        dist.all_reduce(square)
        norm = square.sqrt()
        clip_grads_with_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf, norm)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        loss = sum(losses, start=torch.zeros_like(norm)).detach()
        dist.all_reduce(loss)  # the last rank has it, rank 0 writes it
        if metrics:
            metrics.write(step, loss, norm)

    # Rank 0 collects the layers of all ranks.
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    parts = [None] * ranks
    dist.gather_object(weights, parts if rank == 0 else None)
    if rank == 0:
        save_file({name: value for part in parts for name, value in part.items()}, args.output / "model.safetensors")
    common.finish()


if __name__ == "__main__":
    main()
