"""What train.py imports from the file next to it."""

import torch.distributed as dist


def mean_of_ranks(model, loss, part):
    """Sum gradients and losses over the ranks, which have divided by the targets of the whole batch.

    ``part`` is this rank's part of the samples.
    """
    if not dist.is_initialized():
        return loss
    for value in (*(parameter.grad for parameter in model.parameters()), loss):
        dist.all_reduce(value)
    return loss
