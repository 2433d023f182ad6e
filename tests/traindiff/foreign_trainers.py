"""One training by the real packages of others, dumped: `foreign_trainers.py FOLDER TRAINER...` on each rank."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from traindiff.dump import dump

STEPS, BATCH, WORDS, RATE, CLIP = 3, 8, 32, 0.01, 0.1
WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


class Model(nn.Module):
    """Tied weights, and a part to shard."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, 16)
        self.block = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.output = nn.Linear(16, WORDS, bias=False)
        self.output.weight = self.embedding.weight
        self.double()

    def forward(self, input_ids, labels=None):
        logits = self.output(self.block(self.embedding(input_ids)))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Data(Dataset):
    def __init__(self):
        words = torch.randint(WORDS, (STEPS * BATCH, 7), generator=torch.Generator().manual_seed(1))
        self.inputs, self.labels = words[:, :-1], words[:, 1:]

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, place):
        return {"input_ids": self.inputs[place], "labels": self.labels[place]}


def adamw(model):
    first, *others = model.parameters()
    groups = [{"params": [first]}, {"params": others}]  # DeepSpeed shards each group on its own
    return torch.optim.AdamW(groups, RATE, weight_decay=0.1)


def loader(size):
    """The rank's batches: in each step, rank r has every WORLD-th sample."""
    data = Data()
    return DataLoader(data, size, sampler=DistributedSampler(data, WORLD, RANK, shuffle=False))


def loop(model, optimizer, batches, clip=clip_grad_norm_, backward=lambda loss: loss.backward()):
    for batch in batches:
        backward(model(**batch)["loss"])
        clip(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()


def plain(folder, dtype=torch.float64):
    model = Model().to(dtype)
    with dump(model, folder, STEPS):
        loop(model, adamw(model), DataLoader(Data(), BATCH))


def plain32(folder):
    plain(folder, torch.float32)


def ddp(folder):
    model = Model()
    with dump(model, folder, STEPS):
        wrapped = torch.compile(nn.parallel.DistributedDataParallel(model), backend="eager")
        loop(wrapped, adamw(model), loader(BATCH // WORLD))


def fsdp2(folder):
    from torch.distributed.fsdp import fully_shard

    model = Model()
    with dump(model, folder, STEPS):
        for each in (model.block, model):
            fully_shard(each)
        loop(model, adamw(model), loader(BATCH // WORLD))


def transformers(folder):
    from transformers import Trainer, TrainingArguments

    model = Model()
    arguments = TrainingArguments(
        output_dir=str(Path(folder).with_name("checkpoints")),
        per_device_train_batch_size=BATCH // WORLD // 2,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=RATE,
        weight_decay=0.1,
        max_grad_norm=CLIP,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Data(), optimizers=(adamw(model), None))
    with dump(model, folder, STEPS):
        trainer.train()


def lightning(folder):
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return adamw(self)

    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        max_epochs=1,
        gradient_clip_val=CLIP,
        precision="64-true",
        use_distributed_sampler=False,
        default_root_dir=str(Path(folder).parent),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with dump(module.model, folder, STEPS):
        trainer.fit(module, loader(BATCH // WORLD))


def deepspeed(folder, stage):
    import deepspeed

    deepspeed.ops.__compatible_ops__ = {}  # otherwise, each start compiles an operator for a minute
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = Model().float()
    settings = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // WORLD // 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model), config=settings)
    with dump(model, folder, STEPS):
        for batch in loader(BATCH // WORLD // 2):
            engine.backward(engine(**batch)["loss"])
            engine.step()


if __name__ == "__main__":
    for trainer in sys.argv[2:]:
        folder = f"{sys.argv[1]}/{trainer}"
        if trainer in ("ddp", "fsdp2") and not dist.is_initialized():
            dist.init_process_group("gloo")
        if trainer.startswith("zero"):
            deepspeed(folder, int(trainer.removeprefix("zero")))
        else:
            globals()[trainer](folder)
    if dist.is_initialized():
        dist.destroy_process_group()
