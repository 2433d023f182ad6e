"""FSDP: each rank has a shard of every weight, gradient and optimizer state, and a part of each batch.

torchrun --nproc-per-node 2 -- examples/fsdp.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import math

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

import common


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run)
    device = common.choose_device(run)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("dp_shard",))

    # On the meta device tensors have shapes but no memory: no rank ever holds the whole model.
    with torch.device("meta"):
        model = common.build_model(run)
    # Each block is a unit: its weights are gathered before they are used and freed afterwards, its gradients are
    # reduced and scattered. What the blocks do not have is the root's unit.
    #
    # In FSDP1 this was FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block})). Its terms:
    #   ShardingStrategy.FULL_SHARD     reshard_after_forward=True: gathered again in the backward pass
    #   ShardingStrategy.SHARD_GRAD_OP  reshard_after_forward=False: weights stay whole until the backward pass is over
    #   ShardingStrategy.HYBRID_SHARD   mesh=init_device_mesh(..., (replicas, shards)): see fsdp_tp.py for a mesh
    #   MixedPrecision                  mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, ...)
    #   CPUOffload                      offload_policy=CPUOffloadPolicy(), to_empty(device="cpu"), and Gloo for the
    #                                   norm: init_process_group("cpu:gloo,cuda:nccl")
    #   FlatParameter, use_orig_params  gone: each parameter is a DTensor, sharded in dimension 0
    #   model.no_sync()                 model.set_requires_gradient_sync(False)
    for block in common.blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    # Rank 0 reads the file; each rank gets its shards.
    weights = load_file(args.weights) if rank == 0 else {}
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    inputs, targets = common.load_data(run, args.data)
    # After the sharding, so that the optimizer has states for this rank's shards only.
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output) if rank == 0 else None

    for step, batch in enumerate(common.batches(run, len(inputs))):
        part = batch.tensor_split(ranks)[rank]  # uneven or empty parts: see ddp.py
        x, y = inputs[part].to(device), targets[part].to(device)
        loss = common.loss_sum(model(x), y) / (len(batch) * targets[0].numel())
        # FSDP averages the gradients over the ranks, as DDP does; the loss is the ranks' sum.
        (loss * ranks).backward()
        # Over the shards of all ranks: a DTensor, like the gradients, of which the plain number is taken.
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
