"""FSDP with CPU offload: weights, gradients and optimizer states are in the memory of the CPU; the GPU has one block.

torchrun --nproc-per-node 2 -- examples/fsdp_offload.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import math

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_

import common


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run)
    device = common.choose_device(run)
    # NCCL connects the GPUs; Gloo sums and gathers what lies on the CPU.
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("dp_shard",))

    # On the meta device tensors have shapes but no memory: no rank ever holds the whole model.
    with torch.device("meta"):
        model = common.build_model(run)
    # Each block is a unit: its weights are gathered before they are used and freed afterwards, its gradients are
    # reduced and scattered. What the blocks do not have is the root's unit.
    # Offload: a shard is copied to the GPU before it is gathered, its gradient back to the CPU after it is reduced.
    # Pinned memory lets these copies run while the GPU computes.
    offload = CPUOffloadPolicy(pin_memory=device.type != "cpu")
    for block in common.blocks(model):
        fully_shard(block, mesh=mesh, offload_policy=offload)
    fully_shard(model, mesh=mesh, offload_policy=offload)
    model.to_empty(device="cpu")
    # Rank 0 reads the file; each rank gets its shards.
    weights = load_file(args.weights) if rank == 0 else {}
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    inputs, targets = common.load_data(run, args.data)
    # Its states are where the weights are, and the CPU computes the update.
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output) if rank == 0 else None

    for step, batch in enumerate(common.batches(run, len(inputs))):
        part = batch.tensor_split(ranks)[rank]  # uneven or empty parts: see ddp.py
        x, y = inputs[part].to(device), targets[part].to(device)
        loss = common.loss_sum(model(x), y) / (len(batch) * targets[0].numel())
        # FSDP averages the gradients over the ranks, as DDP does; the loss is the ranks' sum.
        (loss * ranks).backward()
        # The gradients are on the CPU, and so are their norms.
        norm = clip_grad_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        if metrics:
            metrics.write(step, loss, norm)

    # Every rank sends its shards, one tensor at a time; only rank 0 keeps the whole ones, in the CPU's memory.
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        save_file(weights, args.output / "model.safetensors")
    common.finish()


if __name__ == "__main__":
    main()
