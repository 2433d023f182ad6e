"""The same training by four hands: a bare PyTorch loop, Shardlab, Hugging Face's Trainer, Lightning.

Each is a function of a Race that trains the model of its run on its data and calls ``begin`` at the start of each step.
All have the same weights, batches, order, optimizer (the fused one), clipping and learning rate, and write each step's
loss to a file.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab import models
from shardlab.data import store
from shardlab.data.order import BatchOrder, samples_of
from shardlab.models.weights import materialize
from shardlab.settings.types import Run


@dataclass
class Race:
    """What a trainer needs."""

    run: Run
    data: Path
    weights: Path
    output: Path
    begin: Callable[[], None]
    losses: list[float] = field(default_factory=list)
    """Of each step; what shows that all did the same."""

    @property
    def ranks(self) -> int:
        """Ranks that share a batch."""
        return dist.get_world_size() if dist.is_initialized() else 1

    def model(self) -> nn.Module:
        """The plain model with its weights."""
        model = models.build(self.run.model, self.run.task, torch.float32)
        materialize(model, self.weights, torch.device("cpu"))
        return model

    def batches(self, *, whole: bool = False) -> Iterator[Tensor]:
        """(samples, length + 1) tokens of each step's batch; this rank's share, unless ``whole``."""
        tokens = store.open_arrays(self.data / "train.safetensors")["tokens"]
        recipe = self.run.recipe
        order = BatchOrder(len(tokens), recipe.global_batch, self.run.seed)
        rank, ranks = (dist.get_rank(), self.ranks) if self.ranks > 1 and not whole else (0, 1)
        for number in range(recipe.max_steps or 0):
            yield torch.from_numpy(tokens[samples_of(order.batch(number), rank, ranks)]).long()

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """The recipe's."""
        settings = self.run.recipe.optimizer
        return torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token."""
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def bare(race: Race) -> None:
    """A loop as one writes it; for several ranks with DDP, fully_shard or deepspeed by hand."""
    strategy, clip = race.run.strategy, race.run.recipe.clip_norm or 0.0
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
        for number, tokens in enumerate(race.batches()):
            race.begin()
            loss = loss_of(model(tokens[:, :-1]), tokens)
            loss.backward()
            norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            _write(race, log, number, loss.detach(), getattr(norm, "full_tensor", lambda norm=norm: norm)())


def _shard(model: Any, **options: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)


def _bare_zero(race: Race) -> None:
    import deepspeed

    model = race.model()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=race.optimizer(model.parameters()), config=dict(race.run.engine_config or {})
    )
    with (race.output / "bare.jsonl").open("w") as log:
        for number, tokens in enumerate(race.batches()):
            race.begin()
            loss = loss_of(engine(tokens[:, :-1]), tokens)
            engine.backward(loss)
            engine.step()
            _write(race, log, number, loss.detach(), engine.get_global_grad_norm())


def _write(race: Race, log: Any, number: int, loss: Tensor, norm: Any) -> None:
    """Append a step to a file; over all ranks, as the others do."""
    if race.ranks > 1:
        dist.all_reduce(loss)
    race.losses.append(float(loss) / race.ranks)
    log.write(json.dumps({"step": number, "loss": race.losses[-1], "norm": float(norm)}) + "\n")
    log.flush()


def shardlab(race: Race) -> None:
    """Our loop, whole: metrics, heartbeat, samples of usage, and what it counts in its third step."""
    from unittest import mock

    from shardlab.runs import loop
    from shardlab.training.step import train_step

    def step(*args: Any, **options: Any) -> Any:
        race.begin()
        return train_step(*args, **options)

    folder = race.output / "shardlab"
    folder.mkdir()
    with mock.patch.object(loop, "train_step", step):
        loop.train(race.run, race.data, race.weights, folder, {}, watched=loop.Watched(usage_seconds=10))
    if not dist.is_initialized() or dist.get_rank() == 0:
        records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        race.losses += [record["loss"] for record in records if record["kind"] == "train"]


class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The samples in the order of the steps, for loaders that do not shuffle."""

    def __init__(self, race: Race, *, whole: bool) -> None:
        self.rows = torch.cat(list(race.batches(whole=whole)))

    def __len__(self) -> int:
        """Samples of all steps."""
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """One window of tokens."""
        return {"tokens": self.rows[number]}


class WithLoss(nn.Module):
    """What Hugging Face's Trainer wants: a model that gives its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        """Loss and logits of (samples, length + 1) tokens."""
        logits = self.model(tokens[:, :-1])
        return {"loss": loss_of(logits, tokens), "logits": logits}


def hugging_face(race: Race) -> None:
    """transformers.Trainer, logging each step; it deals the batches to the ranks, and hands zero2 to deepspeed."""
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging as messages

    messages.set_verbosity_error()  # type: ignore[no-untyped-call]

    class Begin(TrainerCallback):
        def on_step_begin(self, *args: Any, **options: Any) -> None:
            race.begin()

        def on_log(self, *args: Any, logs: Any = None, **options: Any) -> None:
            if "loss" in (logs or {}):
                race.losses.append(float(logs["loss"]))

    recipe = race.run.recipe
    arguments = TrainingArguments(
        output_dir=str(race.output / "hugging_face"),
        per_device_train_batch_size=recipe.global_batch // race.ranks,
        max_steps=recipe.max_steps or -1,
        learning_rate=recipe.optimizer.learning_rate,
        weight_decay=recipe.optimizer.weight_decay,
        lr_scheduler_type="constant",
        max_grad_norm=recipe.clip_norm or 0.0,
        optim="adamw_torch_fused",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        deepspeed=dict(race.run.engine_config or {}) or None,
    )
    trainer = Trainer(WithLoss(race.model()), arguments, train_dataset=Windows(race, whole=True), callbacks=[Begin()])
    trainer.remove_callback(_printing())
    trainer.train()


def _printing() -> Any:
    from transformers import PrinterCallback

    return PrinterCallback


def lightning(race: Race) -> None:
    """Lightning's Trainer, logging each step; for fsdp its strategy for FSDP2, where a model shards itself."""
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    from lightning import pytorch as pl
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.strategies import ModelParallelStrategy

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
                _shard(self.model, mesh=self.device_mesh["data_parallel"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return race.optimizer(self.parameters())

    class Begin(pl.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, *args: Any) -> None:
            race.begin()

        def on_train_batch_end(self, *args: Any) -> None:
            race.losses.append(float(args[0].callback_metrics["loss"]))

    recipe = race.run.recipe
    parallel: Any = "ddp" if race.ranks > 1 else "auto"
    if sharded:
        parallel = ModelParallelStrategy(data_parallel_size=race.ranks, tensor_parallel_size=1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=race.ranks,
        strategy=parallel,
        use_distributed_sampler=False,
        callbacks=[Begin()],
        max_steps=recipe.max_steps or -1,
        gradient_clip_val=recipe.clip_norm,
        logger=CSVLogger(str(race.output / "lightning")),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    windows = Windows(race, whole=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(windows, batch_size=recipe.global_batch // race.ranks))


TRAINERS: dict[str, Callable[[Race], None]] = {
    "bare": bare,
    "shardlab": shardlab,
    "hugging_face": hugging_face,
    "lightning": lightning,
}
