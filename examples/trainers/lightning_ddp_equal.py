"""lightning_ddp.py with what makes it equal to one device.

torchrun --nproc-per-node 2 -- examples/trainers/lightning_ddp_equal.py $RUN    (examples/README.md)
"""

import torch
from torch.utils.data import DataLoader

import common
import lightning_ddp
import order


class Equal(lightning_ddp.Module):
    """All ranks' targets count the same, also in a last batch with fewer samples on some."""

    def train_dataloader(self):
        # Lightning's sampler would repeat samples until all ranks have the same number.
        parts = order.Parts(self.run, len(self.samples), lightning_ddp.RANK, lightning_ddp.RANKS)
        return DataLoader(self.samples, batch_sampler=parts)

    def training_step(self, batch, _):
        x, y = batch
        # In a mean of the ranks' means, targets of a rank that has fewer count more. DDP averages, so the divisor is a
        # rank's mean number of targets.
        targets = self.trainer.strategy.reduce(torch.tensor(y.numel(), device=self.device), reduce_op="sum")
        return common.loss_sum(self.model(x), y) / targets * lightning_ddp.RANKS


if __name__ == "__main__":
    lightning_ddp.main(Equal, use_distributed_sampler=False)  # the loader's sampler stays
