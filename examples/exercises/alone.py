"""DDP without its D: each rank has the whole model and a part of each batch, and trains on its own.

torchrun --nproc-per-node 2 -- examples/exercises/alone.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import math

import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.nn.utils import clip_grad_norm_

import common


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run)
    device = common.choose_device(run)
    # torchrun has set RANK, WORLD_SIZE and MASTER_ADDR: NCCL connects the GPUs, Gloo the CPUs.
    dist.init_process_group(dist.get_default_backend_for_device(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    model.to(device)
    ddp_model = model
    inputs, targets = common.load_data(run, args.data)
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output) if rank == 0 else None

    # Every rank shuffles with the same seed and epoch, and takes its part of each batch, which may be smaller than
    # those of others, or empty. A DistributedSampler would repeat or drop samples to make all parts equal.
    for step, batch in enumerate(common.batches(run, len(inputs))):
        part = batch.tensor_split(ranks)[rank]
        x, y = inputs[part].to(device), targets[part].to(device)
        # The divisor is the number of targets in the whole batch: a mean of the ranks' means would be wrong if their
        # parts are uneven.
        loss = common.loss_sum(ddp_model(x), y) / (len(batch) * targets[0].numel())
        (loss * ranks).backward()
        norm = clip_grad_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        loss = loss.detach()
        dist.all_reduce(loss)  # each rank has only its part of the sum
        if metrics:
            metrics.write(step, loss, norm)

    # Each rank has other weights; one of them writes.
    if rank == 0:
        save_file(model.state_dict(), args.output / "model.safetensors")
    common.finish()


if __name__ == "__main__":
    main()
