"""DataParallel: one process copies the model to every GPU in each step, and each GPU computes a part of the batch.

python examples/data_parallel.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT

PyTorch recommends DDP instead: one thread of Python drives all GPUs here, and the first one has more to do.
"""

import math

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import clip_grad_norm_

import common


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run)
    device = common.choose_device(run)

    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    model.to(device)
    parallel_model = model
    if device.type != "cpu":  # all CPUs are one device
        # `model` stays on the first GPU. Each forward pass copies it to the others, gives each a part of the batch, and
        # gathers the outputs; the backward pass adds the copies' gradients up in the gradients of `model`.
        parallel_model = nn.DataParallel(model, device_ids=range(torch.accelerator.device_count()))
    inputs, targets = common.load_data(run, args.data)
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output)

    for step, batch in enumerate(common.batches(run, len(inputs))):
        x, y = inputs[batch].to(device), targets[batch].to(device)
        # The outputs of all GPUs: the loss, and all that follows, is that of one device.
        loss = common.loss_sum(parallel_model(x), y) / y.numel()
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        metrics.write(step, loss, norm)

    save_file(model.state_dict(), args.output / "model.safetensors")


if __name__ == "__main__":
    main()
