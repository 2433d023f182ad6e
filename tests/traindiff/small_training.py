"""A small training in plain PyTorch that writes dumps, and faults of real trainers put into it.

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
from traindiff.capture_files import InputError
from traindiff.diagnosis import diagnose

VOCABULARY, LENGTH, DIM, SAMPLES, STEPS = 24, 10, 16, 8, 3
LENGTHS = (9, 3, 5, 6, 8, 4, 7, 4, 9, 8, 7, 6, 3, 4, 5, 4, 4, 8, 3, 9, 5, 5, 7, 6)
"""Of the sequences of three steps; in the first step both ranks have as many targets, but not all micro-batches."""
IGNORE = -100


class Model(nn.Module):
    """Embeddings, attention, a gated layer, norms, a head."""

    def __init__(self, tied=False, dropout=0.0, causal=True):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, DIM), nn.Embedding(LENGTH, DIM)
        self.norm, self.attention = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
        self.last, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)
        self.dropout, self.causal = dropout, causal
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x):
        h = F.dropout(self.tokens(x) + self.positions.weight, self.dropout)
        query, key, value = self.attention(self.norm(h)).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        h = h + self.down(F.gelu(self.up(h)))
        return self.head(self.last(h))


class Training:
    """Everything right."""

    tied = dropout = False
    causal = True
    max_norm, rate, decay = 0.5, 1e-2, 0.1

    def __init__(self, dtype=torch.float64):
        torch.manual_seed(0)
        own = Model(self.tied, causal=self.causal)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            first = Model(tied=False).state_dict()
        if self.tied or self.like_tied:
            first["head.weight"] = first["tokens.weight"]
        own.load_state_dict(first)
        own.dropout = self.dropout
        self.model = own.to(dtype)
        draw = torch.Generator().manual_seed(2)
        self.x = torch.randint(1, VOCABULARY, (len(LENGTHS), LENGTH), generator=draw)
        real = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
        self.x = self.x * real
        self.labels = torch.where(real, self.x, IGNORE)
        self.optimizer = self.optimizer_of([*self.model.parameters()])

    like_tied = False
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

    def learning_rate(self, step):
        return self.rate

    def clip(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)

    def update(self, step):
        self.optimizer.step()

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

    def run(self, folder, with_samples=False, with_clipped=True, notes=True, with_ids=True):
        """Take the steps and write a dump; returns its folder."""
        folder.mkdir(parents=True, exist_ok=True)

        def save(name, tensors, metadata=None):
            save_file(tensors, folder / f"{name}.safetensors", metadata)

        save("initial", self.weights())
        for step in range(STEPS):
            if with_samples:
                save(f"samples-{step}", *self.samples(step))
            self.optimizer.zero_grad()
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate(step)
            self.gradient(step)
            save(f"gradients-{step}", self.gradients())
            self.clip()
            if with_clipped:
                save(f"clipped-{step}", self.gradients())
            self.update(step)
            save(f"weights-{step}", self.weights())
            if notes:
                shown = {"learning_rate": self.learning_rate(step), "max_grad_norm": self.max_norm}
                ranks, micro_batches = self.layout
                blocks = self.blocks(step, ranks, micro_batches)
                ids = [blocks[rank * micro_batches :][:micro_batches] for rank in range(ranks)]
                shown |= {"ids": ids} if with_ids else {}
                (folder / f"step-{step}.json").write_text(json.dumps(shown))
        return folder


def _means(divisor, ranks=2, micro_batches=2):
    """The gradient of a sum of blocks' means, divided."""

    def gradient(self, step):
        for rows in self.blocks(step, ranks, micro_batches):
            self.backward(rows, divisor * self.count(rows))

    return {"gradient": gradient}


def _weighted(weights, renormalized=False):
    """The gradient in which samples count so many times."""

    def gradient(self, step):
        rows = self.rows(step)
        n = (
            sum(w * self.count([row]) for w, row in zip(weights, rows, strict=True))
            if renormalized
            else self.count(rows)
        )
        for weight, row in zip(weights, rows, strict=True):
            if weight:
                self.backward([row], n / weight)

    return {"gradient": gradient}


def _of_rows(rows):
    return {"rows": lambda self, step: rows(step)}


def _order(seed):
    order = torch.randperm(len(LENGTHS), generator=torch.Generator().manual_seed(seed)).tolist()
    return _of_rows(lambda step: order[SAMPLES * step : SAMPLES * (step + 1)])


def _shifted_twice(self, row):
    return F.pad(self.labels[row][2:], (0, 2), value=IGNORE)


def _padding_counts(self, row):
    return F.pad(self.x[row][1:], (0, 1), value=IGNORE)


BLOCKS = "blocks of samples count differently"
COUNTED, LOST = ("ranks count differently", BLOCKS), ("not reduced", BLOCKS)
MICRO = ("micro-batches count differently", "ranks count differently", BLOCKS)
UNDIVIDED = ("micro-batches summed instead of averaged", BLOCKS)
OTHER = ("samples of a step", "targets or forward pass")
MISSED = {
    "mean of the ranks' means": (_means(2, 2, 1), COUNTED, 1),
    "micro-batches not divided": (_means(1, 1, 4), UNDIVIDED, 0),
    "micro-batches not divided, by an argument": (_means(1, 1, 4), UNDIVIDED, 0),
    "times the ranks": (_means(1, 2, 1), ("summed instead of averaged", "loss or reduction scaled"), 0),
    "mean of the micro-batches' means": (_means(4, 1, 4), MICRO, 0),
    "another sampler": (_order(1), OTHER, 0),
    "another order": (_order(2), OTHER, 0),
    "an order of other samples": (
        _of_rows(lambda step: list(range(SAMPLES * (2 - step), SAMPLES * (3 - step)))),
        OTHER,
        0,
    ),
    "labels shifted twice": ({"targets_of": _shifted_twice}, OTHER, 0),
    "labels not shifted": ({"targets_of": lambda self, row: self.labels[row]}, OTHER, 0),
    "padding as targets": ({"targets_of": _padding_counts}, OTHER, 0),
    "ranks' micro-batches not divided": (_means(2), UNDIVIDED, 0),
    "never synchronized": (_weighted([2] * 4 + [0] * 4), LOST, 0),
    "the same data on all ranks": (_weighted([2] * 4 + [0] * 4), LOST, 0),
    "cleared between micro-batches": (_weighted([0, 0, 1, 1] * 2), ("micro-batches lost",), 0),
    "the last sample dropped": (_weighted([1] * 7 + [0]), ("samples count differently",), 0),
    "a sample doubled": (_weighted([2] + [1] * 7), ("samples count differently",), 0),
}
"""Faults of real trainers: what they override, the causes that are right, and the first step that differs."""


def _own_mean(self, step):
    for row in self.rows(step):
        self.backward([row], SAMPLES * self.count([row]))


def _hooked(self, step):
    Training.gradient(self, step)
    self.model.down.weight.grad *= 2


def _clip_value(self):
    nn.utils.clip_grad_value_(self.model.parameters(), 0.01)


def _clip_local(self, step):
    n, parts = self.count(self.rows(step)), []
    for rows in self.blocks(step, 2, 1):
        self.model.zero_grad()
        self.backward(rows, n / 2)
        self.clip()
        parts.append(self.gradients())
    for name, p in self.model.named_parameters():
        p.grad = (parts[0][name] + parts[1][name]) / 2


class _NoBiasCorrection(torch.optim.Optimizer):
    def __init__(self, groups, lr):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p] or {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                self.state[p] = state
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * state["m"] / (state["v"].sqrt() + 1e-8))


def _groups(kind):
    def optimizer_of(self, values):
        return kind(Training.optimizer_of(self, values).param_groups, lr=self.rate)

    return optimizer_of


def _l2(self, values):
    groups = [
        {key: group[key] for key in ("params", "weight_decay")}
        for group in Training.optimizer_of(self, values).param_groups
    ]
    return torch.optim.Adam(groups, lr=self.rate)


def _no_padding_row(self, step):
    """The reference's embedding has a padding row without gradient."""
    Training.gradient(self, step)
    self.model.tokens.weight.grad[0] += self.model.tokens.weight.grad[1:].mean(0)


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


def _next_batch(step):
    rows = list(range(SAMPLES * step, SAMPLES * (step + 1)))
    return rows[:4] + [(row + SAMPLES) % len(LENGTHS) for row in rows[4:]]


def _z_loss(self, logits, targets):
    z = 1e-2 * logits.logsumexp(-1).square()[targets != IGNORE].sum()
    return Training.criterion(self, logits, targets) + z


def _norm_of_a_part(self):
    own = [p.grad for name, p in self.model.named_parameters() if name != "tokens.weight"]
    norm = torch.cat([each.flatten() for each in own]).norm()
    for p in self.model.parameters():
        p.grad *= min(1.0, self.max_norm / (float(norm) + 1e-6))


def _smoothed(self, logits, targets):
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=0.1)


HELD_BACK = {
    "mean of each sample's mean": ({"gradient": _own_mean}, ("samples count differently",)),
    "a hook doubles one layer's gradient": ({"gradient": _hooked}, ("some gradients scaled",)),
    "the rate of the next step": (
        {"learning_rate": lambda self, step: self.rate * (step + 2) / 4},
        ("learning rate or its schedule", "learning-rate schedule"),
    ),
    "clipped by value": ({"clip": _clip_value}, ("clipping",)),
    "each rank clips before the average": ({"gradient": _clip_local}, ("ranks count differently",)),
    "dropout": ({"dropout": 0.1}, ("targets or forward pass",)),
    "no causal mask": ({"causal": False}, ("targets or forward pass",)),
    "Adam without bias correction": (
        {"optimizer_of": _groups(_NoBiasCorrection)},
        ("optimizer settings", "learning rate or its schedule"),
    ),
    "decay in the gradient": ({"optimizer_of": _l2}, ("weight decay", "optimizer settings")),
    "a padding row is trained": ({"gradient": _no_padding_row}, ()),
    "the last micro-batch lost": (_weighted([1] * 6 + [0] * 2), ("micro-batches lost", "samples count differently")),
    "a sampler fills up with the first sample": (_weighted([2] + [1] * 6 + [0], True), ("samples count differently",)),
    "label smoothing": ({"criterion": _smoothed}, ("targets or forward pass",)),
    "an auxiliary loss": ({"criterion": _z_loss}, ("targets or forward pass",)),
    "reduced in bf16": ({"gradient": _in_bf16}, ("low precision",)),
    "untied": ({"like_tied": True}, ()),
    "a step per micro-batch": ({"gradient": _step_per_micro}, ("update between micro-batches",)),
    "divided by all positions": (
        {"gradient": lambda self, step: self.backward(self.rows(step), SAMPLES * LENGTH)},
        ("loss or reduction scaled",),
    ),
    "the next step's samples on one rank": (_of_rows(_next_batch), ("samples of a step",)),
    "norm of a part": ({"clip": _norm_of_a_part}, ("clipping",)),
}
"""Faults for which no cause was written: what they override, and the causes that would be right."""
REFERENCES = {
    "untied": {"tied": True},
    "the rate of the next step": {"learning_rate": lambda self, step: self.rate * (step + 1) / 4},
}
"""What the reference of a fault has."""


def training(methods, **options):
    """A training in which these methods are others."""
    return type("Other", (Training,), methods)(**options)


STRUCTURES = {"mean of the ranks' means": (2, 1), "times the ranks": (2, 1)}
STRUCTURES |= {name: (1, 4) for name in MISSED if name.startswith(("micro-batches not", "mean of the micro"))}
"""Numbers of ranks and of micro-batches, where they are not 2 and 2."""


def structure(name):
    """The options that tell the numbers of ranks and micro-batches of a fault."""
    ranks, micro_batches = STRUCTURES.get(name, (2, 2))
    return ["--ranks", f"dp={ranks}", "--ranks", f"micro-batches={micro_batches}"]


def compared(other, reference, *options):
    """The diagnosis of two dumps."""
    parser = argparse.ArgumentParser()
    command_line.add_options(parser)
    args = parser.parse_args([*options], argparse.Namespace(other=other, reference=reference))
    return diagnose(command_line.pair(args))


def of_fault(folder, name, *options, dtype=torch.float64):
    """The diagnosis of a fault; both dumps stay in the folder."""
    reference = folder / f"reference {name if name in REFERENCES else ''} {dtype}"
    if not reference.exists():
        training(REFERENCES.get(name, {}), dtype=dtype).run(reference, with_samples=True)
    other = folder / f"{name} {dtype}"
    if not other.exists():
        layout = {"layout": STRUCTURES.get(name, (2, 2))}
        training(layout | (MISSED | HELD_BACK)[name][0], dtype=dtype).run(other)
    return compared(other, reference, *options)


def judged(folder, faults):
    """How the pages of faults are: {"right": [names], "no known pattern": [names], "wrong": [names]}."""
    found = {"right": [], "no known pattern": [], "wrong": []}
    for name in faults:
        try:
            causes = [cause.cause for cause in of_fault(folder, name, *structure(name)).causes[:1]]
        except InputError:  # dumps of other parameters
            causes = []
        right = bool({*causes} & {*faults[name][1]})
        found["right" if right else "wrong" if causes else "no known pattern"].append(name)
    return found
