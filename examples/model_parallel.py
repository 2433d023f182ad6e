"""Model parallelism: the first layers on one device, the others on a second one; one process, one device at a time.

python examples/model_parallel.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import math

import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils import clip_grad_norm_

import common


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run)
    device = common.choose_device(run)
    # On a machine without GPUs both are the CPU.
    devices = [device] * 2 if device.type == "cpu" else [torch.device(device.type, number) for number in range(2)]

    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    for own_device, names in zip(devices, common.split(model, len(devices)), strict=True):
        for name in names:
            module = model.get_submodule(name).to(own_device)
            # The activations follow the weights; in the backward pass their gradients take the same way back.
            module.register_forward_pre_hook(lambda _, inputs, own_device=own_device: inputs[0].to(own_device))
    inputs, targets = common.load_data(run, args.data)
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output)

    for step, batch in enumerate(common.batches(run, len(inputs))):
        # Inputs where the first layer is, targets where the last one leaves its outputs.
        x, y = inputs[batch].to(devices[0]), targets[batch].to(devices[-1])
        loss = common.loss_sum(model(x), y) / y.numel()
        loss.backward()
        # Optimizer and norm take gradients of several devices.
        norm = clip_grad_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        metrics.write(step, loss, norm)

    save_file(model.state_dict(), args.output / "model.safetensors")


if __name__ == "__main__":
    main()
