"""FSDP with tensor parallelism, on a 2-D mesh: ranks of a row share a batch, ranks of a column share the sharding.

torchrun --nproc-per-node 4 -- examples/fsdp_tp.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.utils import clip_grads_with_norm_

import common
from tensor_parallel import PLANS, gradient_norm


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run, models=("mlp", "llama"))
    device = common.choose_device(run)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # Ranks 0 and 1, then 2 and 3, split the layers: tensor parallelism sends most, so its ranks are neighbors, on one
    # node. Ranks 0 and 2, then 1 and 3, read different samples and shard what each has.
    tp = getattr(run.mesh, "tp", 2)
    mesh = init_device_mesh(device.type, (ranks // tp, tp), mesh_dim_names=("dp_shard", "tp"))
    part, parts = mesh["dp_shard"].get_local_rank(), mesh["dp_shard"].size()
    common.check_divisible(run, tp)

    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    model.to(device)
    # First the layers are split, then FSDP shards each rank's parts: DTensors over both axes of the mesh.
    parallelize_module(model, mesh["tp"], PLANS[run.model.name])
    for block in common.blocks(model):
        fully_shard(block, mesh=mesh["dp_shard"])
    fully_shard(model, mesh=mesh["dp_shard"])
    inputs, targets = common.load_data(run, args.data)
    # One call for all weights, the default on GPUs (foreach), does not take split and whole ones together.
    optimizer = common.make_optimizer(run, model.parameters(), foreach=False)
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output) if rank == 0 else None

    for step, batch in enumerate(common.batches(run, len(inputs))):
        # The ranks of a tensor-parallel group have the same part of the batch, and compute the same loss.
        own = batch.tensor_split(parts)[part]
        # DTensors hang with an empty part: a group without samples computes one that does not count.
        rows = own if len(own) else batch[:1]
        x, y = inputs[rows].to(device), targets[rows].to(device)
        loss = common.loss_sum(model(x), y) / (len(batch) * targets[0].numel()) * bool(len(own))
        # FSDP averages over its own axis only.
        (loss * parts).backward()
        norm = gradient_norm(model)  # split layers are on both axes of the mesh, others on one
        if run.recipe.max_grad_norm:
            clip_grads_with_norm_(model.parameters(), run.recipe.max_grad_norm, norm, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        loss = loss.detach()
        dist.all_reduce(loss, group=mesh["dp_shard"].get_group())
        if metrics:
            metrics.write(step, loss, norm)

    # Gathered over both axes; all ranks take part.
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        save_file(weights, args.output / "model.safetensors")
    common.finish()


if __name__ == "__main__":
    main()
