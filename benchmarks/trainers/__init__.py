"""The same training in four implementations: a bare PyTorch loop, Shardlab, Hugging Face's Trainer, Lightning.

Each is a function of a Race that trains the model of its run on its data and calls ``begin`` at the start of each step.
All have the same weights, batches, order, optimizer (the fused one), clipping, learning rate and settings of DDP, FSDP
or DeepSpeed, and write each step's loss, over all ranks, to a file. None evaluates or saves between steps.
"""

import json
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.race import Race  # type: ignore[import-not-found]


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next token."""
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def bare(race: Race) -> None:
    """A loop as one writes it; for several ranks with DDP, fully_shard or deepspeed by hand."""
    strategy, clip = race.run.strategy, race.run.recipe.max_grad_norm or 0.0
    if strategy == "zero2":
        _bare_zero(race)
        return
    model: Any = race.model()
    if strategy == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if strategy == "fsdp":
        _shard(model)
    optimizer = race.optimizer(model.parameters())
    with (race.output / "bare.jsonl").open("w") as log:
        for tokens in race.batches():
            race.begin()
            loss = loss_of(model(tokens[:, :-1]), tokens)
            loss.backward()
            norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            race.record(log, _mean(race, loss.detach()), getattr(norm, "full_tensor", lambda norm=norm: norm)())


def _shard(model: Any, **options: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)


def _bare_zero(race: Race) -> None:
    import deepspeed

    model = race.model()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=race.optimizer(model.parameters()), config=race.engine_config(model)
    )
    with (race.output / "bare.jsonl").open("w") as log:
        for tokens in race.batches():
            race.begin()
            loss = loss_of(engine(tokens[:, :-1]), tokens)
            engine.backward(loss)
            engine.step()
            race.record(log, _mean(race, loss.detach()), engine.get_global_grad_norm())


def _mean(race: Race, loss: Tensor) -> float:
    """Return the loss over all ranks."""
    if race.ranks > 1:
        dist.all_reduce(loss)
    return float(loss) / race.ranks


def shardlab(race: Race) -> None:
    """Train with our complete loop: metrics, heartbeat, and the counting in its third step."""
    from unittest import mock

    from shardlab.train import loop
    from shardlab.train.step import train_step

    def step(engine: Any, *args: Any, **options: Any) -> Any:
        race.begin()
        return train_step(engine, *args, **options)

    folder = race.output / "shardlab"
    folder.mkdir()
    with mock.patch.object(loop, "train_step", step):
        loop.train(race.run, race.data, race.weights, folder, {})
    if not dist.is_initialized() or dist.get_rank() == 0:
        records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        race.losses += [record["loss"] for record in records if record["kind"] == "train"]


class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The samples in the order of the steps, for loaders that do not shuffle."""

    def __init__(self, race: Race, *, whole: bool) -> None:
        self.rows = torch.cat(list(race.batches(whole=whole)))

    def __len__(self) -> int:
        """Return the number of samples of all steps."""
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """Return one window of tokens."""
        return {"tokens": self.rows[number]}


class WithLoss(nn.Module):
    """Model that returns its loss, as Hugging Face's Trainer requires."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        """Return loss and logits of (samples, length + 1) tokens."""
        logits = self.model(tokens[:, :-1])
        return {"loss": loss_of(logits, tokens), "logits": logits}


def hugging_face(race: Race) -> None:
    """Train with transformers.Trainer, logging each step; it distributes the batches, and passes zero2 to deepspeed.

    By default it makes DDP search for unused parameters, if the model is not one of transformers', and copy gradients
    into its buckets.
    """
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging as messages

    messages.set_verbosity_error()  # type: ignore[no-untyped-call]

    class Begin(TrainerCallback):
        def on_step_begin(self, *args: Any, **options: Any) -> None:
            race.begin()

        def on_log(self, *args: Any, logs: Any = None, **options: Any) -> None:
            if "loss" in (logs or {}):
                race.record(log, float(logs["loss"]), logs["grad_norm"])

    recipe, model = race.run.recipe, race.model()
    arguments = TrainingArguments(
        output_dir=str(race.output / "hugging_face"),
        per_device_train_batch_size=recipe.global_batch_size // race.ranks,
        max_steps=recipe.max_steps or -1,
        learning_rate=recipe.optimizer.learning_rate,
        weight_decay=recipe.optimizer.weight_decay,
        lr_scheduler_type="constant",
        max_grad_norm=recipe.max_grad_norm or 0.0,
        optim="adamw_torch_fused",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        deepspeed=race.engine_config(model) or None,
    )
    trainer = Trainer(WithLoss(model), arguments, train_dataset=Windows(race, whole=True), callbacks=[Begin()])
    trainer.remove_callback(PrinterCallback)
    trainer.accelerator.ddp_handler.gradient_as_bucket_view = True
    with (race.output / "hugging_face.jsonl").open("w") as log:
        trainer.train()


def lightning(race: Race) -> None:
    """Train with Lightning's Trainer, logging each step; for fsdp its FSDP2 strategy (the model shards itself)."""
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    from lightning import pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

    sharded = race.run.strategy == "fsdp"

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = race.model()

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            loss = loss_of(self.model(batch["tokens"][:, :-1]), batch["tokens"])
            self.log("loss", loss, sync_dist=race.ranks > 1)
            return loss

        def configure_model(self) -> None:
            if sharded:
                assert self.device_mesh is not None
                _shard(self.model, mesh=self.device_mesh["data_parallel"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return race.optimizer(self.parameters())

    class Begin(pl.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
            race.begin()

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            race.record(log, float(trainer.callback_metrics["loss"]))

    recipe = race.run.recipe
    parallel: Any = DDPStrategy(gradient_as_bucket_view=True) if race.ranks > 1 else "auto"
    if sharded:
        parallel = ModelParallelStrategy(data_parallel_size=race.ranks, tensor_parallel_size=1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=race.ranks,
        strategy=parallel,
        use_distributed_sampler=False,
        callbacks=[Begin()],
        max_steps=recipe.max_steps or -1,
        gradient_clip_val=recipe.max_grad_norm,
        logger=False,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    windows = Windows(race, whole=False)
    with (race.output / "lightning.jsonl").open("w") as log:
        trainer.fit(Module(), torch.utils.data.DataLoader(windows, batch_size=recipe.global_batch_size // race.ranks))


TRAINERS: dict[str, Callable[[Race], None]] = {
    "bare": bare,
    "shardlab": shardlab,
    "hugging_face": hugging_face,
    "lightning": lightning,
}
