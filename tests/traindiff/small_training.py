"""A small training in plain PyTorch that writes dumps without traindiff's help, and faults of real trainers in it.

A language model of one block reads 8 padded sequences per step, as two ranks would in two micro-batches each:
[0, 1] and [2, 3] on the first, [4, 5] and [6, 7] on the second. A fault overrides methods of `Training`.
"""

import argparse
import json

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from traindiff import command_line
from traindiff.diagnosis import diagnose

VOCABULARY, LENGTH, DIM, SAMPLES, STEPS = 24, 10, 16, 8, 3
LENGTHS = (9, 3, 5, 6, 8, 4, 7, 4, 9, 8, 7, 6, 3, 4, 5, 4, 4, 8, 3, 9, 5, 5, 7, 6)
"""Of the sequences of three steps; in the first step both ranks have as many targets, but not all micro-batches."""
IGNORE = -100


class Model(nn.Module):
    """Embeddings, attention, a gated layer, norms, a head."""

    def __init__(self, causal):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, DIM), nn.Embedding(LENGTH, DIM)
        self.norm, self.attention = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
        self.last, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)
        self.causal = causal

    def forward(self, x):
        h = self.tokens(x) + self.positions.weight
        query, key, value = self.attention(self.norm(h)).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        h = h + self.down(F.gelu(self.up(h)))
        return self.head(self.last(h))


class Training:
    """Everything right."""

    causal = True
    max_norm, rate, decay = 0.5, 1e-2, 0.1

    def __init__(self, dtype=torch.float64):
        torch.manual_seed(0)
        self.model = Model(self.causal).to(dtype)
        draw = torch.Generator().manual_seed(2)
        self.x = torch.randint(1, VOCABULARY, (len(LENGTHS), LENGTH), generator=draw)
        real = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
        self.x = self.x * real
        self.labels = torch.where(real, self.x, IGNORE)
        self.optimizer = self.optimizer_of([*self.model.parameters()])

    layout = 1, 1
    """Numbers of ranks and of micro-batches in which the training says that it reads."""

    def optimizer_of(self, values):
        groups = [
            {"params": [value for value in values if (value.dim() > 1) == matrix], "weight_decay": decay}
            for matrix, decay in ((True, self.decay), (False, 0.0))
        ]
        return torch.optim.AdamW(groups, lr=self.rate)

    def rows(self, step):
        """The samples of a step."""
        return list(range(SAMPLES * step, SAMPLES * (step + 1)))

    def targets_of(self, row):
        """Each position's target: the next token."""
        return F.pad(self.labels[row][1:], (0, 1), value=IGNORE)

    def count(self, rows):
        return sum(int((self.targets_of(row) != IGNORE).sum()) for row in rows)

    def criterion(self, logits, targets):
        return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")

    def backward(self, rows, divisor):
        """Add the gradient of a sum over these samples' targets, divided."""
        logits = self.model(self.x[rows])
        targets = torch.stack([self.targets_of(row) for row in rows])
        (self.criterion(logits.flatten(0, 1), targets.flatten()) / divisor).backward()

    def blocks(self, step, ranks=2, micro_batches=2):
        """The samples of each micro-batch of each rank."""
        rows, size = self.rows(step), SAMPLES // ranks // micro_batches
        return [rows[at : at + size] for at in range(0, SAMPLES, size)]

    def gradient(self, step):
        """Compute the gradient of a step."""
        self.backward(self.rows(step), self.count(self.rows(step)))

    def clip(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)

    def gradients(self):
        return {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}

    def weights(self):
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def samples(self, step):
        """Gradients of each sample's part of the loss, and the metadata of their file."""
        rows, n = self.rows(step), self.count(self.rows(step))
        found = []
        for row in rows:
            self.model.zero_grad()
            self.backward([row], n)
            found.append(self.gradients())
        self.model.zero_grad()
        together = {name: torch.stack([each[name].flatten() for each in found]) for name in found[0]}
        counts = [self.count([row]) for row in rows]
        return together, {"ids": json.dumps(rows), "targets": json.dumps(counts)}

    def run(self, folder, with_samples=False):
        """Take the steps and write a dump; returns its folder."""
        folder.mkdir(parents=True, exist_ok=True)

        def save(name, tensors, metadata=None):
            save_file(tensors, folder / f"{name}.safetensors", metadata)

        save("initial", self.weights())
        for step in range(STEPS):
            if with_samples:
                save(f"samples-{step}", *self.samples(step))
            self.optimizer.zero_grad()
            self.gradient(step)
            save(f"gradients-{step}", self.gradients())
            self.clip()
            save(f"clipped-{step}", self.gradients())
            self.optimizer.step()
            save(f"weights-{step}", self.weights())
            ranks, micro_batches = self.layout
            blocks = self.blocks(step, ranks, micro_batches)
            ids = [blocks[rank * micro_batches :][:micro_batches] for rank in range(ranks)]
            shown = {"learning_rate": self.rate, "max_grad_norm": self.max_norm, "ids": ids}
            (folder / f"step-{step}.json").write_text(json.dumps(shown))
        return folder


def _means(divisor, ranks=2, micro_batches=2):
    """The gradient of a sum of blocks' means, divided."""

    def gradient(self, step):
        for rows in self.blocks(step, ranks, micro_batches):
            self.backward(rows, divisor * self.count(rows))

    return {"gradient": gradient, "layout": (ranks, micro_batches)}


def _weighted(weights, renormalized=False):
    """The gradient in which samples count so many times."""

    def gradient(self, step):
        rows = self.rows(step)
        counts = [self.count([row]) for row in rows]
        n = sum(w * count for w, count in zip(weights if renormalized else [1] * SAMPLES, counts, strict=True))
        for weight, row in zip(weights, rows, strict=True):
            if weight:
                self.backward([row], n / weight)

    return {"gradient": gradient}


def _order(seed):
    order = torch.randperm(len(LENGTHS), generator=torch.Generator().manual_seed(seed)).tolist()
    return {"rows": lambda self, step: order[SAMPLES * step : SAMPLES * (step + 1)]}


def _own_mean(self, step):
    for row in self.rows(step):
        self.backward([row], SAMPLES * self.count([row]))


def _hooked(self, step):
    Training.gradient(self, step)
    self.model.down.weight.grad *= 2


def _clip_local(self, step):
    n, parts = self.count(self.rows(step)), []
    for rows in self.blocks(step, 2, 1):
        self.model.zero_grad()
        self.backward(rows, n / 2)
        self.clip()
        parts.append(self.gradients())
    for name, p in self.model.named_parameters():
        p.grad = (parts[0][name] + parts[1][name]) / 2


def _in_bf16(self, step):
    parts = []
    for rows in self.blocks(step, 2, 1):
        self.model.zero_grad()
        self.backward(rows, self.count(self.rows(step)) / 2)
        parts.append(self.gradients())
    for name, p in self.model.named_parameters():
        p.grad = ((parts[0][name].bfloat16() + parts[1][name].bfloat16()) / 2).to(p.dtype)


def _step_per_micro(self, step):
    n = self.count(self.rows(step))
    for number, rows in enumerate((self.rows(step)[:4], self.rows(step)[4:])):
        if number:
            self.clip()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.backward(rows, n)


def _norm_of_a_part(self):
    own = [p.grad for name, p in self.model.named_parameters() if name != "tokens.weight"]
    norm = torch.cat([each.flatten() for each in own]).norm()
    for p in self.model.parameters():
        p.grad *= min(1.0, self.max_norm / (float(norm) + 1e-6))


def _smoothed(self, logits, targets):
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=0.1)


FAULTS = {
    "mean of the ranks' means": (_means(2, 2, 1), "means of blocks: the mean of the ranks' means, not of all targets"),
    "micro-batches not divided": (_means(1, 1, 4), "means of blocks: all of 4 micro-batches' means are added"),
    "times the ranks": (_means(1, 2, 1), "a factor of 2, the number of ranks along dp or the number of ranks"),
    "another order": (
        _order(2),
        "other samples: not read: 1, 2, 3, 5; read in place of them: 19, 12, 22, 11",
    ),
    "an order of other samples": (
        {"rows": lambda self, step: Training.rows(self, 2 - step)},
        "other samples: those of step 2",
    ),
    "labels not shifted": ({"targets_of": lambda self, row: self.labels[row]}, None),
    "only one rank counts": (_weighted([2] * 4 + [0] * 4), "not reduced: only rank 0 of 2 counts, 2 times"),
    "cleared between micro-batches": (
        _weighted([0, 0, 1, 1] * 2),
        "lost blocks: of 2 micro-batches only 1 counts, 1 times",
    ),
    "the last sample dropped": (_weighted([1] * 7 + [0]), "dropped or repeated samples: 0 times 7 (the step's last)"),
    "a sampler fills up with the first sample": (
        _weighted([2] + [1] * 6 + [0], True),
        "dropped or repeated samples: 0 times 7 (the step's last); 2 times 0 (the step's first); the others 0.883721 "
        "times",
    ),
    "mean of each sample's mean": (
        {"gradient": _own_mean},
        "means of blocks: the mean of the samples' means, not of all targets",
    ),
    "a hook doubles one layer's gradient": ({"gradient": _hooked}, "a factor of 2, the number of ranks along dp or"),
    "clipped by value": (
        {"clip": lambda self: nn.utils.clip_grad_value_(self.model.parameters(), 0.01)},
        "clip by value: at 0.01",
    ),
    "each rank clips before the average": (
        {"gradient": _clip_local, "layout": (2, 1)},
        "clip of each block: to a norm of 0.5 of each rank before the reduction",
    ),
    "no causal mask": ({"causal": False}, None),
    "reduced in bf16": ({"gradient": _in_bf16}, "cast: this training's are rounded to bfloat16"),
    "label smoothing": ({"criterion": _smoothed}, None),
    "a step per micro-batch": ({"gradient": _step_per_micro}, None),
    "norm of a part": ({"clip": _norm_of_a_part}, "norm of some: all parameters but tokens.weight"),
}
"""What a fault overrides, and the cause that a page names: none where it is only a place."""


def training(methods, **options):
    """A training in which these methods are others."""
    return type("Other", (Training,), methods)(**options)


def compared(other, reference, *options):
    """The diagnosis of two dumps."""
    parser = argparse.ArgumentParser()
    command_line.add_options(parser)
    args = parser.parse_args([*options], argparse.Namespace(other=other, reference=reference))
    return diagnose(command_line.pair(args))


def of_fault(folder, name, dtype=torch.float64):
    """The diagnosis of a fault; both dumps stay in the folder."""
    reference, other = (folder / f"{each} {dtype}" for each in ("reference", name))
    if not reference.exists():
        training({}, dtype=dtype).run(reference, with_samples=True)
    methods = {"layout": (2, 2)} | FAULTS[name][0]
    training(methods, dtype=dtype).run(other)
    ranks, micro_batches = methods["layout"]
    return compared(other, reference, "--ranks", f"dp={ranks}", "--ranks", f"micro-batches={micro_batches}")
