"""hf_trainer.py with what makes it equal to one device.

torchrun --nproc-per-node 2 -- examples/trainers/hf_trainer_equal.py $RUN    (examples/README.md)
"""

from torch.utils.data import DataLoader

import common
import hf_trainer
import order


class Equal(hf_trainer.OurOrder):
    """The recipe's optimizer and schedule, and each sample once per epoch."""

    def create_optimizer(self, *_):
        # Trainer's own decays neither biases nor norms. Here all weights are decayed.
        self.optimizer = common.make_optimizer(self.run, self.model.parameters())
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        # The default, lr_scheduler_type="linear", decays the learning rate to 0.
        self.lr_scheduler = common.make_scheduler(self.run, self.optimizer, len(self.train_dataset))
        return self.lr_scheduler

    def get_train_dataloader(self):
        # accelerate would fill up the ranks' last batches with samples from the epoch's beginning.
        parts = order.Parts(self.run, len(self.train_dataset), self.args.process_index, self.args.world_size)
        return DataLoader(self.train_dataset, batch_sampler=parts)


if __name__ == "__main__":
    hf_trainer.main(Equal, max_grad_norm=0.0)  # instead of 1.0: no clipping, where the recipe has none
