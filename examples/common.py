"""What is no part of any technique: settings, data, models, the loss, and the files that a training leaves."""

import argparse
import json
import math
import os
import sys
from collections import OrderedDict
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adadelta": torch.optim.Adadelta,
}
IMPLEMENTED = {"optimizer", "lr_schedule", "epochs", "max_steps", "global_batch_size", "max_grad_norm", "dtype"}
NOT_IMPLEMENTED = {
    "gradient_accumulation_steps": 1,
    "label_smoothing": 0.0,
    "decay": "all",
    "groups": {},
    "freeze": [],
    "adapter": None,
    "sync_batch_norm": False,
    "loss_chunks": 1,
    "activation_checkpointing": "none",
    "compile": "none",
    "precision": "full",
    "deterministic": False,
    "keep_best": False,
    "ema_decay": None,
}
"""Settings of a recipe, and the only value that these examples know of each."""
OF_OTHER_STAGES = {
    "eval_batch_size",
    "evaluation",
    "compile_backend",
    "checkpoint_interval_steps",
    "checkpoint_interval_minutes",
    "keep_last_checkpoints",
}
"""Settings of a recipe that change nothing in a training."""


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True, help="settings: results/STRATEGY/WORKLOAD/run.json")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set: data/prepared/NAME")
    parser.add_argument("--weights", type=Path, required=True, help="initial weights, a safetensors file")
    parser.add_argument("--output", type=Path, required=True, help="existing folder for metrics and trained weights")
    return parser.parse_args()


def stop(sentence):
    """End the training with a sentence, which only rank 0 prints."""
    sys.exit(f"error: {sentence}" if os.environ.get("RANK", "0") == "0" else 1)


def read_run(path, models=("mlp", "cnn", "llama"), dtypes=("float32", "float64")):
    """Read the settings of a run, as nested attributes; stop if the example cannot do what one of them says."""
    run = json.loads(path.read_text(), object_hook=lambda keys: SimpleNamespace(**keys))
    recipe, schedule = run.recipe, run.recipe.lr_schedule
    recipe.groups = vars(recipe.groups)
    known = {"model": (run.model.name, models), "recipe.dtype": (recipe.dtype, dtypes)}
    known |= {"recipe.lr_schedule.name": (schedule.name, ("constant", "step"))}
    known |= {"recipe.lr_schedule.warmup_steps": (schedule.warmup_steps, (0,))}
    known |= {"recipe.optimizer.name": (recipe.optimizer.name, OPTIMIZERS)}
    for key in vars(recipe).keys() - IMPLEMENTED - OF_OTHER_STAGES:
        known[f"recipe.{key}"] = vars(recipe)[key], (NOT_IMPLEMENTED.get(key),)
    for key, (value, values) in known.items():
        if value not in values:
            stop(f"{path}: {key}: this example knows only {', '.join(map(str, values))}.")
    return run


def choose_device(run):
    """Return the CPU or, as the site says, this process's GPU."""
    if run.site.device == "cpu":
        return torch.device("cpu")
    torch.backends.cudnn.allow_tf32 = False  # convolutions in float32, not with factors rounded to 10 bits
    device = torch.device(torch.accelerator.current_accelerator().type, int(os.environ.get("LOCAL_RANK", "0")))
    torch.accelerator.set_device_index(device.index)
    return device


def finish():
    """Wait until rank 0 has saved, and end this rank.

    At once: where Python frees its objects one by one, Gloo's threads can hang or abort a training that is over.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


# Data


def load_data(run, folder):
    """Return inputs and targets of all training samples, each with the samples in dimension 0."""
    arrays, dtype = load_file(folder / "train.safetensors"), getattr(torch, run.recipe.dtype)
    if run.task == "regression":
        return arrays["x"].to(dtype), arrays["y"].to(dtype)
    if run.task == "classification":
        return arrays["images"].to(dtype) / 127.5 - 1, arrays["labels"].long()
    tokens = arrays["tokens"].long()
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()  # the target of each position is the next token


def order_of_epoch(run, epoch, samples):
    """Return the sample indices of an epoch, in their order: the same on all ranks."""
    return np.random.default_rng((run.seed, epoch)).permutation(samples)


def batches(run, samples):
    """Yield the sample indices of each step's global batch: the same on all ranks, in another order in each epoch."""

    def of_all_epochs():
        for epoch in range(run.recipe.epochs):
            yield from torch.from_numpy(order_of_epoch(run, epoch, samples)).split(run.recipe.global_batch_size)

    return islice(of_all_epochs(), run.recipe.max_steps)


def loss_sum(outputs, targets):
    """Return the sum of the losses of all targets: squared errors, or cross-entropy where targets are integers."""
    if targets.is_floating_point():
        return F.mse_loss(outputs, targets, reduction="sum")
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="sum")


# Optimizer


def make_optimizer(run, parameters, **options):
    settings = {key: value for key, value in vars(run.recipe.optimizer).items() if value is not None}
    name, learning_rate = settings.pop("name"), settings.pop("learning_rate")
    return OPTIMIZERS[name](parameters, lr=learning_rate, **settings, **options)


def make_scheduler(run, optimizer, samples):
    """Return what multiplies the learning rate by gamma after each epoch; its ``step`` is called after each step."""
    schedule = run.recipe.lr_schedule
    gamma = schedule.gamma if schedule.name == "step" else 1.0
    return torch.optim.lr_scheduler.StepLR(optimizer, math.ceil(samples / run.recipe.global_batch_size), gamma)


def check_divisible(run, ranks, sizes=("hidden", "heads", "kv_heads", "vocab_size")):
    """Stop if a size that is split over that many ranks would leave some with more than others."""
    for name in sizes:
        if (size := getattr(run.model.args, name, ranks)) % ranks:
            stop(f"{ranks} ranks do not divide {name} {size}; choose a number that does.")


# Models: chains of modules, so that every technique can name their parts.


def build_model(run):
    """Return a model with random weights. Its parameters have the names of the file with the initial weights."""
    return MODELS[run.model.name](**vars(run.model.args)).to(getattr(torch, run.recipe.dtype))


def blocks(model):
    """Return the parts of a model that are large and alike: the layers of Llama, or all that have weights."""
    return [module for module in getattr(model, "layers", model) if has_weights(module)]


def split(model, count):
    """Split a chain into consecutive parts, each with weights; return the names of each part's modules."""
    names = []
    for name, module in model.named_children():
        names += [f"{name}.{number}" for number in range(len(module))] if name == "layers" else [name]
    places = [place for place, name in enumerate(names) if has_weights(model.get_submodule(name))]
    if count > len(places):
        stop(f"the model has {len(places)} layers with weights, not {count}; start fewer ranks.")
    starts = [places[len(places) * part // count] for part in range(count)]
    return [names[start:end] for start, end in pairwise([*starts, len(names)])]


def has_weights(module):
    return any(True for _ in module.parameters())


def mlp(inputs, hidden, outputs):
    return nn.Sequential(
        OrderedDict(hidden=nn.Linear(inputs, hidden), activation=nn.ReLU(), output=nn.Linear(hidden, outputs))
    )


def cnn(channels, image_size, classes, hidden, activation="relu", dropout1=0.0, dropout2=0.0):
    if dropout1 or dropout2:
        stop("model cnn: the examples have no dropout, whose random masks no other run has; use the small size.")
    kind = {"relu": nn.ReLU, "gelu": nn.GELU}[activation]
    return nn.Sequential(
        OrderedDict(
            convolution1=nn.Conv2d(channels, 32, kernel_size=3),
            activation1=kind(),
            convolution2=nn.Conv2d(32, 64, kernel_size=3),
            activation2=kind(),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            dense1=nn.Linear(64 * ((image_size - 4) // 2) ** 2, hidden),
            activation3=kind(),
            dense2=nn.Linear(hidden, classes),
        )
    )


def llama(vocab_size, dim, layers, heads, kv_heads, hidden):
    return decoder(vocab_size, dim, (LlamaBlock(dim, heads, kv_heads, hidden) for _ in range(layers)))


def moe(vocab_size, dim, layers, heads, kv_heads, hidden, experts, shared=0, bias_rate=0.0, auxiliary=0.0, **routing):
    def block():
        router = Router(dim, experts, bias_rate, auxiliary, **routing)
        return MoeBlock(dim, heads, kv_heads, router, Experts(dim, hidden, experts), Experts(dim, hidden, shared))

    return decoder(vocab_size, dim, (block() for _ in range(layers)))


def decoder(vocab_size, dim, blocks):
    """Maps token ids (batch, length) to logits (batch, length, vocab_size)."""
    return nn.Sequential(
        OrderedDict(
            embedding=nn.Embedding(vocab_size, dim),
            layers=nn.Sequential(*blocks),
            norm=nn.RMSNorm(dim, eps=1e-5),
            output=nn.Linear(dim, vocab_size, bias=False),
        )
    )


class Block(nn.Module):
    """Attention, then a feed-forward network, each on normalized states and added to them: x (batch, length, dim) to
    the same shape.
    """

    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = Attention(dim, heads, kv_heads)
        self.mlp_norm = nn.RMSNorm(dim, eps=1e-5)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.mlp_norm(x))


class LlamaBlock(Block):
    """With SwiGLU."""

    def __init__(self, dim, heads, kv_heads, hidden):
        super().__init__(dim, heads, kv_heads)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def feed_forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MoeBlock(Block):
    """With the experts that a router chooses for each token, and shared ones that every token takes."""

    def __init__(self, dim, heads, kv_heads, router, experts, shared):
        super().__init__(dim, heads, kv_heads)
        self.router, self.experts, self.shared = router, experts, shared

    def feed_forward(self, x):
        mixed = self.experts(x, *self.router(x))
        return sum((swiglu(x, *matrices) for matrices in self.shared.matrices()), mixed)


class Router(nn.Module):
    """Scores the experts for each token, and chooses those with the largest scores (DeepSeek-V3, arXiv:2412.19437)."""

    def __init__(self, dim, experts, bias_rate, auxiliary, top_k, scores="softmax", normalize=True, scale=1.0):
        super().__init__()
        self.experts, self.bias_rate, self.auxiliary, self.top_k = experts, bias_rate, auxiliary, top_k
        self.scores, self.normalize, self.scale = scores, normalize, scale
        self.weight = nn.Parameter(torch.empty(experts, dim))
        self.register_buffer("bias", torch.zeros(experts) if bias_rate else None)

    def forward(self, x):
        """Map x (batch, length, dim) to factors and numbers of each token's experts, both (batch, length, top_k)."""
        logits = F.linear(x, self.weight)
        scores = logits.softmax(-1) if self.scores == "softmax" else logits.sigmoid()
        chosen = (scores if self.bias is None else scores + self.bias).topk(self.top_k).indices
        factors = scores.gather(-1, chosen)
        if self.normalize:
            factors = factors / factors.sum(-1, keepdim=True)
        load = F.one_hot(chosen, self.experts).sum((1, 2))  # tokens of each sample per expert
        self.load = load.sum(0)
        # To be added to the sum of the losses: smallest if each sample uses all experts alike (equation 17).
        shares = (scores / scores.sum(-1, keepdim=True)).mean(1)
        self.imbalance = self.auxiliary * self.experts / self.top_k * (load * shares).sum()
        return factors * self.scale, chosen

    def balance(self, load):
        """Make experts that had too few of a step's tokens likelier in the next one (section 2.1.2)."""
        if self.bias is not None:
            self.bias += self.bias_rate * (load.sum() - load * self.experts).sign().to(self.bias)


class Experts(nn.Module):
    """SwiGLU networks with stacked weights: gate and up (experts, hidden, dim), down (experts, dim, hidden)."""

    def __init__(self, dim, hidden, experts):
        super().__init__()
        self.experts = experts
        if experts:
            self.gate = nn.Parameter(torch.empty(experts, hidden, dim))
            self.up = nn.Parameter(torch.empty(experts, hidden, dim))
            self.down = nn.Parameter(torch.empty(experts, dim, hidden))

    def matrices(self):
        return zip(self.gate, self.up, self.down, strict=True) if self.experts else ()

    def forward(self, x, factors, chosen):
        """Sort the tokens of x (batch, length, dim) by expert, compute, and add up what comes back for each token."""
        order = chosen.flatten().argsort(stable=True)
        rows = x.flatten(0, 1)[order // chosen.shape[-1]]
        results = self.compute(rows, chosen.flatten().bincount(minlength=self.experts))
        as_chosen = torch.empty_like(results).index_copy(0, order, results).view(*chosen.shape, x.shape[-1])
        return (as_chosen * factors[..., None]).sum(2)

    def compute(self, rows, counts):
        """Map rows (rows, dim) sorted by expert, ``counts`` for each, to the same shape."""
        parts = zip(rows.split(counts.tolist()), self.matrices(), strict=True)
        return torch.cat([swiglu(part, *matrices) for part, matrices in parts])


def swiglu(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


class Attention(nn.Module):
    """Causal attention with rotary positions; several query heads share a key head if kv_heads < heads."""

    first_position = 0
    """Of x in its sequence."""

    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.head_dim = dim // heads
        self.query = nn.Linear(dim, self.head_dim * heads, bias=False)
        self.key = nn.Linear(dim, self.head_dim * kv_heads, bias=False)
        self.value = nn.Linear(dim, self.head_dim * kv_heads, bias=False)
        self.output = nn.Linear(self.head_dim * heads, dim, bias=False)

    def forward(self, x):
        # As many heads as the projections have: with tensor parallelism, this rank's part of them.
        query, key, value = (
            states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for states in (self.query(x), self.key(x), self.value(x))
        )
        mixed = self.attend(rotate(query, self.first_position), rotate(key, self.first_position), value)
        return self.output(mixed.transpose(1, 2).flatten(-2))

    def attend(self, query, key, value):
        """Shapes: (batch, heads, length, head_dim)."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def rotate(x, first_position):
    """Rotate the halves of x (batch, heads, length, head_dim) by angles that grow with the position (RoPE)."""
    length, head_dim = x.shape[-2:]
    exponents = torch.arange(0, head_dim, 2, device=x.device, dtype=torch.float64) / head_dim
    positions = torch.arange(first_position, first_position + length, device=x.device, dtype=torch.float64)
    angles = torch.outer(positions, 10_000.0**-exponents)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


MODELS = {"mlp": mlp, "cnn": cnn, "llama": llama, "moe": moe}


# Results


class Metrics:
    """metrics.jsonl, one line per step; also printed."""

    def __init__(self, folder):
        self.file = (folder / "metrics.jsonl").open("w", buffering=1)

    def write(self, step, loss, grad_norm):
        """Write the mean loss of a step before its update, and the norm of its gradients before clipping: tensors."""
        loss, grad_norm = loss.item(), grad_norm.item()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            stop(f"the loss of step {step} is {loss}, the gradient norm {grad_norm}.")
        self.file.write(json.dumps({"step": step, "loss": loss, "grad_norm": grad_norm}) + "\n")
        print(f"step {step:5}   loss {loss:.6f}   grad norm {grad_norm:.4g}", flush=True)
