"""DDP: each rank has the whole model and a part of each batch; their gradients are averaged.

torchrun --nproc-per-node 2 -- examples/exercises/ddp.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import math

import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel
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
    # Hole 1: ddp_model, the model in DistributedDataParallel, which averages the gradients over the ranks (1 line).
    #   On GPUs it needs device_ids=[device].
    raise NotImplementedError("hole 1")
    inputs, targets = common.load_data(run, args.data)
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output) if rank == 0 else None

    # Every rank shuffles with the same seed and epoch, and takes its part of each batch, which may be smaller than
    # those of others, or empty. A DistributedSampler would repeat or drop samples to make all parts equal.
    for step, batch in enumerate(common.batches(run, len(inputs))):
        # Hole 2: part, the indices of this rank's samples: part `rank` of `ranks` nearly equal parts (1 line).
        raise NotImplementedError("hole 2")
        x, y = inputs[part].to(device), targets[part].to(device)
        # Hole 3: loss, this rank's summand of the mean over all targets of the whole batch (common.loss_sum adds up),
        #   and its backward pass (2 lines). DDP averages the gradients, but this loss is added up over the ranks.
        raise NotImplementedError("hole 3")
        # After the backward pass all ranks have the same gradients, so that each computes the same norm.
        norm = clip_grad_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        loss = loss.detach()
        # Hole 4: loss becomes the mean over the whole batch, on every rank (1 line).
        raise NotImplementedError("hole 4")
        if metrics:
            metrics.write(step, loss, norm)

    # All ranks have the same weights; one of them writes.
    if rank == 0:
        save_file(model.state_dict(), args.output / "model.safetensors")
    common.finish()


if __name__ == "__main__":
    main()
