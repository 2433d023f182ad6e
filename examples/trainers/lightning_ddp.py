"""Lightning with DDP: a LightningModule has the loss and the optimizer, Lightning's Trainer has the loop.

torchrun --nproc-per-node 2 -- examples/trainers/lightning_ddp.py $RUN    (examples/README.md)

It gets a DataLoader in the common order, but Lightning replaces its sampler by one that shuffles, so this trains
another model than one device does. lightning_ddp_equal.py has what makes it equal.
"""

import os
from importlib.util import find_spec

from safetensors.torch import load_file, save_file
from torch.nn.utils import get_total_norm
from torch.utils.data import DataLoader

import common
import order
from dump import dump

if not find_spec("lightning"):
    common.stop("this example needs lightning; run: .venv/bin/pip install -r envs/peers.txt.")

from lightning import Callback, LightningModule, Trainer

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Module(LightningModule):
    """The model, its data, its loss and its optimizer."""

    def __init__(self, run, model, samples):
        super().__init__()
        self.run, self.model, self.samples = run, model, samples

    def training_step(self, batch, _):
        x, y = batch
        # The mean over this rank's targets, as the loss functions of PyTorch return it. DDP averages it over the ranks.
        return common.loss_sum(self.model(x), y) / y.numel()

    def train_dataloader(self):
        sampler = order.InOrder(self.run, len(self.samples))
        return DataLoader(self.samples, order.samples_per_rank(self.run, RANKS), sampler=sampler)

    def configure_optimizers(self):
        optimizer = common.make_optimizer(self.run, self.parameters())
        scheduler = common.make_scheduler(self.run, optimizer, len(self.samples))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class WriteMetrics(Callback):
    """Writes the mean of the ranks' losses, and the gradient norm before clipping."""

    def __init__(self, folder):
        self.metrics = common.Metrics(folder) if RANK == 0 else None

    def on_before_optimizer_step(self, trainer, module, optimizer):  # and before clipping
        self.norm = get_total_norm([each.grad for each in module.parameters()])

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        loss = trainer.strategy.reduce(outputs["loss"], reduce_op="mean")
        if self.metrics:
            self.metrics.write(trainer.global_step - 1, loss, self.norm)


def main(module_class=Module, **instead):
    """``instead``: arguments of Lightning's Trainer in place of its defaults."""
    args = common.parse_arguments()
    run = common.read_run(args.run)
    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    samples = [*zip(*common.load_data(run, args.data), strict=True)]
    trainer = Trainer(
        accelerator="cpu" if run.site.device == "cpu" else "auto",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=RANKS // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        precision={"float32": "32-true", "float64": "64-true"}[run.recipe.dtype],
        max_steps=order.steps(run, len(samples)),
        gradient_clip_val=run.recipe.max_grad_norm,
        callbacks=[WriteMetrics(args.output)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **instead,
    )
    with dump(model, args.output / "dumps"):
        trainer.fit(module_class(run, model, samples))
    if RANK == 0:
        save_file(model.state_dict(), args.output / "model.safetensors")
    common.finish()


if __name__ == "__main__":
    main()
