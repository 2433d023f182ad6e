"""Faults in loops of plain PyTorch, and right loops of other kinds, dumped by `dump` on each rank: planted.py FOLDER.

Alone it trains what needs no ranks; on several ranks the others. Four steps of a small classification.
"""

import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from traindiff.dump import dump

STEPS, BATCH, CLIP, RATE = 4, 8, 0.2, 1e-2
WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
DRAW = torch.Generator().manual_seed(5)
X, Y = torch.randn(STEPS * BATCH, 4, generator=DRAW).double(), torch.randint(3, (STEPS * BATCH,), generator=DRAW)
TARGETS = torch.tensor([1, 2, 3, 4, 2, 1, 5, 3] * STEPS)
"""Numbers of the targets that samples stand for, where a loss is a mean over targets."""
WEIGHTS = torch.tensor([0.5, 2, 1.25, 1, 0.3, 0.7, 3, 0.1])


class Shifted(nn.Module):
    """A loss does not depend on its shift, whose gradients are nothing but rounding; as a key's bias in attention."""

    def __init__(self):
        super().__init__()
        self.body = model().float()
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.body(x) + self.shift.mean()


def model(kind=None):
    torch.manual_seed(0)
    if kind in ("float32", "bfloat16"):
        return model().to(getattr(torch, kind))
    if kind == "shifted":
        return Shifted()
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def adamw(parameters, **settings):
    return torch.optim.AdamW(parameters, **{"lr": RATE, "weight_decay": 0.1} | settings)


def slowly(parameters):
    return adamw(parameters, lr=1e-4)


def rows(step, rank=RANK, world=WORLD, micro=0, micros=1):
    """The samples of a rank's micro-batch."""
    size = BATCH // world // micros
    start = step * BATCH + rank * size * micros + micro * size
    return slice(start, start + size)


def train(folder, own=None, optimizer=adamw, clip=clip_grad_norm_, limit=None, micros=1, rate=None, **hooks):
    """Train and write a dump; ``hooks``: functions that are called instead of a step's usual ones."""
    own = own or model()
    optimizer = optimizer(own.parameters())
    wrapped = hooks["wrap"](own) if "wrap" in hooks else own
    dumped = dump(own, folder, STEPS).begin()
    for step in range(STEPS):
        for group in optimizer.param_groups if rate else ():
            group["lr"] = rate(step)
        for micro in range(micros):
            if "before_forward" in hooks:
                hooks["before_forward"](wrapped, micro)
            which = hooks.get("rows", rows)(step, micro=micro, micros=micros)
            x = hooks.get("prepare", torch.clone)(X[which]).to(next(own.parameters()).dtype)
            with torch.autocast("cpu", torch.bfloat16, hooks.get("autocast", False)):
                losses = F.cross_entropy(wrapped(x), Y[which], reduction="none")
            losses = losses / len(x) / micros
            if "weigh" in hooks:
                losses = hooks["weigh"](losses, which)
            if hooks.get("samples"):
                dumped.samples(losses, targets=TARGETS[which] if hooks["samples"] == "targets" else None)
            losses.sum().backward()
        if limit:
            clip(own.parameters(), limit)
        optimizer.step()
        if hooks.get("cleared", True):
            optimizer.zero_grad()
    dumped.end()


def by_hand(parameters, limit, added=0.0):
    """Clip as a loop of its own may do: by the norm to which PyTorch adds 1e-6."""
    parameters = [*parameters]
    norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
    for p in parameters:
        p.grad.mul_(min(1.0, limit / (float(norm) + added)))


def each_rank(parameters, limit):
    """Clip on each rank, then average."""
    parameters = [*parameters]
    by_hand(parameters, limit, added=1e-6)
    average(parameters)


def average(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= WORLD


def by_targets(losses, which):
    """The samples' parts of a mean over the targets of a (micro-)batch, where the losses are those of a mean."""
    return losses * len(losses) * TARGETS[which] / TARGETS[which].sum()


def without_biases(parameters):
    return adamw([p for p in parameters if p.dim() > 1])


class Reducing(torch.optim.AdamW):
    """Averages the ranks' gradients inside its step, as some loops for speed do."""

    def step(self, closure=None):
        average(p for group in self.param_groups for p in group["params"])
        super().step()


def split(folder):
    """Rank 0 writes why dumps of plain tensors, and of an optimizer, that are split over ranks are refused."""
    own = model()
    with torch.no_grad():
        own[0].weight += RANK
    said = []
    for name, options in (("split", {"own": own}), ("parts", {"optimizer": lambda p: adamw([*p][RANK::WORLD])})):
        try:
            train(folder / name, **options)
        except RuntimeError as error:
            said.append(str(error))
    if RANK == 0:
        (folder / "refused").write_text("\n".join(said))


def against(reference, says=None):
    """What a training is compared with, and what is said of it; None: nothing differs."""
    return {"reference": reference, "says": says}


def off_by_one(step, micro=0, micros=1, **_):
    return rows(step + (micro == micros - 1 and step == 1), micro=micro, micros=micros)


ONE = {
    "reference": {"samples": True, "limit": CLIP},
    "over targets": {"samples": "targets", "weigh": by_targets},
    "float32": {"own": "float32", "limit": CLIP},
    "float32, slowly": {"own": "float32", "optimizer": slowly},
    "shifted": {"own": "shifted", "limit": math.inf},
    "plain": {"samples": True} | against("reference", "optimizer state; no clipping"),
    "over targets of micro-batches": {"micros": 2, "weigh": by_targets}
    | against("over targets", "gradient; means of blocks: the mean of the micro-batches' means, not of all targets"),
    "weights of samples": {"weigh": lambda losses, which: losses * WEIGHTS} | against("plain", "gradient; "),
    "clipped by hand": {"own": "float32", "clip": by_hand, "limit": CLIP} | against("float32"),
    "clipped by hand in float64": {"clip": by_hand, "limit": CLIP}
    | against("reference", "gradient; clip: to a norm of 0.2 as the reference, by its own code"),
    "clips later by PyTorch": {"limit": 0.33} | against("plain", "optimizer state; clip: to a norm of 0.33"),
    "gradients not cleared": {"cleared": False}
    | against("plain", "gradient; previous gradient: 1 times that of step 0 is added"),
    "decay in the gradient": {"optimizer": lambda p: torch.optim.Adam(p, RATE, weight_decay=0.1)}
    | against("plain", "optimizer state; "),
    "decay of biases left out": {
        "optimizer": lambda p: adamw([{"params": (p := [*p])[::2]}, {"params": p[1::2], "weight_decay": 0.0}])
    }
    | against("plain", "update; "),
    "biases left out": {"optimizer": without_biases} | against("plain", "optimizer state; "),
    "warm-up": {"rate": lambda step: step * RATE} | against("plain", "update; no update"),
    "half the rate": {"rate": lambda step: RATE / 2} | against("plain", "update; updates times 0.5"),
    "samples of the next step": {"rows": off_by_one} | against("plain", "samples; other samples: those of step 2"),
    "some prepared otherwise": {"prepare": lambda x: torch.cat([x[:2], 1.1 * x[2:]])}
    | against("plain", "samples; other samples: not read: "),
    "autocast": {"own": "float32", "limit": CLIP, "autocast": True} | against("float32"),
    "bfloat16, slowly": {"own": "bfloat16", "optimizer": slowly} | against("float32, slowly", "update; "),
    "shifted, in micro-batches": {"own": "shifted", "micros": 4, "limit": math.inf} | against("shifted"),
}
"""A training on one device, and what it is compared with: the first stage that differs, and its cause."""


def synced(*micros):
    """The flag that DistributedDataParallel reads in its forward pass."""
    return lambda wrapped, micro: setattr(wrapped, "require_backward_grad_sync", micro in micros)


DDP = {"wrap": DistributedDataParallel}
RANKS = {
    "right with two micro-batches": {**DDP, "micros": 2} | against("plain"),
    "reduced in the optimizer": {"optimizer": lambda p: Reducing(p, RATE, weight_decay=0.1)} | against("plain"),
    "never reduced": {**DDP, "before_forward": synced()}
    | against("plain", "gradient; not reduced: only rank 0 of 2 counts, 2 times"),
    "last micro-batch not reduced": {**DDP, "micros": 2, "before_forward": synced(0)}
    | against("plain", "gradient; not reduced: micro-batch 1 of 2"),
    "each rank clips": {"clip": each_rank, "limit": CLIP} | against("reference", "gradient; weights of blocks: "),
    "the same samples": {**DDP, "rows": lambda step, **_: rows(step, rank=0)}
    | against("plain", "samples; other samples: ranks 0-1 read the same ones; not read: "),
}
"""The same on two ranks."""


def main(folder):
    torch.set_num_threads(1)
    if WORLD > 1:
        dist.init_process_group("gloo")
    for name, options in (RANKS if WORLD > 1 else ONE).items():
        options = {key: value for key, value in options.items() if key not in against("")}
        if "own" in options:
            options["own"] = model(options["own"])
        train(Path(folder) / name, **options)
    if WORLD > 1:
        split(Path(folder))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
