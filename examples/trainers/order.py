"""The common order of the samples, for trainers that read a DataLoader."""

import math

import torch

import common


class InOrder:
    """A sampler: each iteration is the next epoch, in its order."""

    def __init__(self, run, samples):
        self.run, self.samples, self.epoch = run, samples, 0

    def __len__(self):
        return self.samples

    def __iter__(self):
        order = common.order_of_epoch(self.run, self.epoch, self.samples)
        self.epoch += 1
        return iter(order.tolist())


class Parts:
    """A batch sampler: one rank's part of each global batch, which may be smaller than those of other ranks."""

    def __init__(self, run, samples, rank, ranks):
        self.order, self.size, self.rank, self.ranks = InOrder(run, samples), run.recipe.global_batch_size, rank, ranks

    def __len__(self):
        return math.ceil(len(self.order) / self.size)

    def __iter__(self):
        for batch in torch.tensor([*self.order]).split(self.size):
            yield batch.tensor_split(self.ranks)[self.rank].tolist()


def steps(run, samples):
    """Return the number of steps of the training."""
    of_all_epochs = run.recipe.epochs * math.ceil(samples / run.recipe.global_batch_size)
    return min(of_all_epochs, run.recipe.max_steps or of_all_epochs)


def samples_per_rank(run, ranks):
    """Return a rank's batch size; stop if the ranks' batches do not make up a global batch."""
    size = run.recipe.global_batch_size
    if size % ranks:
        common.stop(f"recipe.global_batch_size {size} is not divisible by {ranks} ranks; choose a size that is.")
    return size // ranks
