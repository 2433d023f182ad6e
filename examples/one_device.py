"""One device: the training loop that every other file in this folder parallelizes."""

import math

from safetensors.torch import load_file, save_file
from torch.nn.utils import clip_grad_norm_

import common


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run)
    device = common.choose_device(run)

    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    model.to(device)
    inputs, targets = common.load_data(run, args.data)
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output)

    for step, batch in enumerate(common.batches(run, len(inputs))):
        x, y = inputs[batch].to(device), targets[batch].to(device)
        loss = common.loss_sum(model(x), y) / y.numel()
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        metrics.write(step, loss, norm)

    save_file(model.state_dict(), args.output / "model.safetensors")


if __name__ == "__main__":
    main()
