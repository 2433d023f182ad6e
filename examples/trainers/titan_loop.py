"""The loop of torchtitan: fully_shard over a device mesh, micro-batches, a loss divided by all valid tokens.

torchrun --nproc-per-node 2 -- examples/trainers/titan_loop.py $RUN    (examples/README.md)

Where the recipe has no betas and no max_grad_norm, this has torchtitan's, so it trains another model than one device
does. titan_loop_equal.py has what makes it equal. torchtitan's warmup of 200 steps is longer than many trainings here,
so the schedule is the recipe's.
"""

import math

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

import common
from dump import dump

MICRO_BATCH = 4
"""Samples of a rank that are computed at a time: torchtitan's local_batch_size."""
IGNORED = -100
"""Target that does not count."""


def main(betas=(0.9, 0.95), max_norm=1.0):
    args = common.parse_arguments()
    run = common.read_run(args.run, models=("llama",))
    device = common.choose_device(run)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("dp_shard",))

    with torch.device("meta"):
        model = common.build_model(run)
    for block in common.blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # The loss is divided by the tokens of all ranks, so that gradients are added, not averaged.
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # else FSDP asks for a product, which Gloo does not have
    model.to_empty(device=device)
    weights = load_file(args.weights) if rank == 0 else {}
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    inputs, targets = common.load_data(run, args.data)
    recipe = run.recipe
    if recipe.optimizer.name != "adamw":
        common.stop(f"{args.run}: recipe.optimizer {recipe.optimizer.name}: this example knows only adamw.")
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.optimizer.learning_rate,
        betas=recipe.optimizer.betas or betas,
        weight_decay=recipe.optimizer.weight_decay,
    )
    epoch_steps = math.ceil(len(inputs) / recipe.global_batch_size)
    gamma = recipe.lr_schedule.gamma if recipe.lr_schedule.name == "step" else 1.0
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: gamma ** (step // epoch_steps))
    metrics = common.Metrics(args.output) if rank == 0 else None

    with dump(model, args.output / "dumps"):
        for step, batch in enumerate(common.batches(run, len(inputs))):
            # As many micro-batches on each rank, as all take part in gathering the weights; some may be empty.
            part = batch.tensor_split(ranks)[rank]
            micro_batches = part.tensor_split(math.ceil(len(batch) / ranks / MICRO_BATCH))
            valid = (targets[part] != IGNORED).sum().to(device)
            dist.all_reduce(valid, group=mesh.get_group())  # tokens of all ranks and micro-batches
            loss_of_step = torch.zeros((), dtype=common.DTYPES[recipe.dtype], device=device)
            for rows in micro_batches:
                x, y = inputs[rows].to(device), targets[rows].to(device)
                loss = common.loss_sum(model(x), y) / valid
                loss.backward()
                loss_of_step += loss.detach()
            norm = get_total_norm([each.grad for each in model.parameters()]).full_tensor()
            clip_grads_with_norm_(model.parameters(), recipe.max_grad_norm or max_norm, norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            dist.all_reduce(loss_of_step, group=mesh.get_group())
            if metrics:
                metrics.write(step, loss_of_step, norm)

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        save_file(weights, args.output / "model.safetensors")
    common.finish()


if __name__ == "__main__":
    main()
