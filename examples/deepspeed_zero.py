"""DeepSpeed ZeRO: its engine shards the optimizer's states, the gradients and the weights, and calls the optimizer.

torchrun --nproc-per-node 2 -- examples/deepspeed_zero.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import os

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

import common

STAGE = 3
"""1: each rank has a shard of the optimizer's states; 2: also of the gradients; 3: also of the weights, like FSDP."""


def main():
    args = common.parse_arguments()
    # DeepSpeed computes in float32 at most.
    run = common.read_run(args.run, dtypes=("float32",))
    device = common.choose_device(run)
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # read by the import: without it DeepSpeed takes a GPU if it finds one
    import deepspeed

    if device.type == "cpu":
        # Else DeepSpeed would compile an all-reduce that only its inference uses.
        deepspeed.ops.__compatible_ops__ = {}
    dist.init_process_group(dist.get_default_backend_for_device(device))
    deepspeed.init_distributed()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    model.to(device)
    inputs, targets = common.load_data(run, args.data)
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    # Clipping, the schedule and what is sharded are the engine's: it changes the optimizer's parameters in place.
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        config={
            "train_micro_batch_size_per_gpu": 1,  # for its own timers only
            "gradient_clipping": run.recipe.max_grad_norm or 0.0,
            # Weights below the threshold would stay whole.
            "zero_optimization": {"stage": STAGE, "stage3_param_persistence_threshold": 0},
            "zero_allow_untested_optimizer": True,  # Adadelta, SGD
        },
    )
    metrics = common.Metrics(args.output) if rank == 0 else None

    for step, batch in enumerate(common.batches(run, len(inputs))):
        part = batch.tensor_split(ranks)[rank]  # uneven or empty parts: see ddp.py
        x, y = inputs[part].to(device), targets[part].to(device)
        loss = common.loss_sum(engine(x), y) / (len(batch) * targets[0].numel())
        # The engine averages the gradients over the ranks, as DDP does; the loss is the ranks' sum.
        engine.backward(loss * ranks)
        # Clips, updates, clears the gradients, and steps the scheduler.
        engine.step()
        norm = torch.as_tensor(engine.get_global_grad_norm())
        loss = loss.detach()
        dist.all_reduce(loss)
        if metrics:
            metrics.write(step, loss, norm)

    # In stage 3 weights are whole only inside this context; all ranks take part.
    with deepspeed.zero.GatheredParameters([*model.parameters()], enabled=STAGE == 3):
        if rank == 0:
            save_file(model.state_dict(), args.output / "model.safetensors")
    common.finish()


if __name__ == "__main__":
    main()
