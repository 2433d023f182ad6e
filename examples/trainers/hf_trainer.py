"""Hugging Face's Trainer: accelerate's DDP around the model; the loop, the schedule and clipping are Trainer's.

torchrun --nproc-per-node 2 -- examples/trainers/hf_trainer.py $RUN    (examples/README.md)

What the recipe says is set; what is easily forgotten keeps Trainer's default, so this trains another model than one
device does. hf_trainer_equal.py has what makes it equal.
"""

from importlib.util import find_spec

import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

import common
import order
from dump import dump

if not (find_spec("accelerate") and find_spec("transformers")):
    common.stop("Trainer needs transformers and accelerate; run: .venv/bin/pip install -r envs/peers.txt.")

from transformers import Trainer, TrainerCallback, TrainingArguments

OPTIMIZERS = {"adamw": "adamw_torch", "sgd": "sgd"}


class OurOrder(Trainer):
    """Trainer, with samples in the common order: its own is another one, drawn from its seed."""

    run = None

    def get_train_dataloader(self):
        # As Trainer does, but for the sampler: accelerate gives each rank every second batch of this loader.
        sampler = order.InOrder(self.run, len(self.train_dataset))
        size = order.samples_per_rank(self.run, self.args.world_size)
        return self.accelerator.prepare(DataLoader(self.train_dataset, size, sampler=sampler))


class WriteMetrics(TrainerCallback):
    """Writes what Trainer logs. It adds up losses in float32."""

    def __init__(self, folder):
        self.metrics = common.Metrics(folder)

    def on_log(self, args, state, control, logs, **_):
        if "loss" in logs:
            loss, norm = torch.tensor([logs["loss"], logs["grad_norm"]], dtype=torch.float64)
            self.metrics.write(state.global_step - 1, loss, norm)


def mean_loss(outputs, labels, num_items_in_batch):
    """As Trainer asks of a loss function: it has counted the targets of all micro-batches and ranks."""
    return common.loss_sum(outputs, labels) / num_items_in_batch


def main(trainer_class=OurOrder, **instead):
    """``instead``: arguments of Trainer in place of its defaults."""
    args = common.parse_arguments()
    run = common.read_run(args.run)
    recipe, optimizer = run.recipe, run.recipe.optimizer
    if optimizer.name not in OPTIMIZERS or optimizer.momentum or optimizer.betas:
        common.stop(f"{args.run}: recipe.optimizer: this example knows only adamw and sgd, without momentum or betas.")
    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    # Trainer calls model(**sample): `input` is what nn.Sequential calls its argument.
    samples = [{"input": x, "labels": y} for x, y in zip(*common.load_data(run, args.data), strict=True)]
    said = {"max_grad_norm": recipe.max_grad_norm} if recipe.max_grad_norm else {}
    arguments = TrainingArguments(
        output_dir=args.output,
        use_cpu=run.site.device == "cpu",
        optim=OPTIMIZERS[optimizer.name],
        learning_rate=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        max_steps=order.steps(run, len(samples)),
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **{**instead, **said},
    )
    trainer = trainer_class(model, arguments, train_dataset=samples, compute_loss_func=mean_loss)
    trainer.run = run
    if arguments.process_index == 0:
        trainer.add_callback(WriteMetrics(args.output))
    with dump(model, args.output / "dumps"):
        trainer.train()
    trainer.save_model()  # model.safetensors, by rank 0
    common.finish()


if __name__ == "__main__":
    main()
