"""Models as other people write them: one for each rule of settings/model_rules.py that a model of ours can break, and
one for each property that is treated specially.

(Rules about models of the transformers library: test_transformers.py.) All are regressions, (batch, inputs) to (batch,
outputs), and but for a chain that can be split know nothing about ranks or this project. Whoever imports this finds
them as if each were a file in scripts/shardlab/models.
"""

import copy
import math
import random
import re
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import reference
import torch
import torch.nn.functional as F
from torch import nn

from helpers.common import tiny_run
from shardlab.models._chain import Chain, Segment
from shardlab.settings import registry

ENGINES = ("single", "ddp", "fsdp", "zero1", "zero3")
DATA = "mlp"
"""The workload whose data, task and recipe they have."""
ADAMW = {"name": "adamw", "learning_rate": 0.01, "betas": [0.9, 0.999], "weight_decay": 0.1}
RECIPE = {"optimizer": ADAMW, "max_grad_norm": 1.0}


@dataclass(frozen=True)
class Foreign:
    """A model; words of the sentence that refuses it, by engine; and the strategies that it is trained under in each
    form, to losses and weights that are those of plain PyTorch on one device.
    """

    model: type[nn.Module]
    blocks: list[str]
    refused: dict[str, str]
    short: tuple[str, ...]
    long: tuple[str, ...]


MODELS: dict[str, Foreign] = {}


def foreign(blocks=("first", "last"), short=("fsdp",), long=(), **refused):
    """`refused`: words by engine; `zero` stands for both, `every` for all, which then train it under none."""
    groups = {"every": ENGINES, "zero": ENGINES[3:]}
    each = {engine: words for key, words in refused.items() for engine in groups.get(key, (key,))}
    assert set(each) <= set(ENGINES), each

    def add(model):
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", model.__name__).lower()
        MODELS[name] = Foreign(model, list(blocks), each, short if "single" not in each else (), long)
        sys.modules[f"shardlab.models.{name}"] = SimpleNamespace(Model=model)
        return model

    return add


class Layers(nn.Module):
    """Two layers, what a model has besides, and what it does between them."""

    def __init__(self, *, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.more(inputs)

    def more(self, inputs):
        pass

    def between(self, h):
        return h

    def forward(self, x):
        return self.last(self.between(F.gelu(self.first(x))))


# dtypes: what is not of the training's dtype


@foreign(short=("fsdp", "fsdp_offload", "zero2"), long=("dp", "hsdp"))
class OddBuffers(Layers):
    """Buffers of many types, saved and not saved, an integer above 2^53, -inf, and an output in float64."""

    def more(self, inputs):
        columns, angles = torch.arange(16), torch.linspace(0.1, 3, 8)
        saved = {
            "turn": torch.exp(1j * angles),
            "ident": torch.tensor([2**53 + 1]),
            "keep": columns % 3 != 1,
            "gain": torch.linspace(0.3, 1.7, 16).half(),
        }
        unsaved = {
            "index": columns.flip(0).to(torch.int16),
            "causal": torch.full((4, 4), -math.inf).triu(1),
            "freqs_cis": torch.polar(torch.ones_like(angles), angles),
        }
        for name, value in (saved | unsaved).items():
            self.register_buffer(name, value, persistent=name in saved)

    def between(self, h):
        kind = h.dtype
        h = h[:, self.index.long()] * (self.ident % 4) * self.keep + self.gain.to(kind)
        turned = torch.view_as_complex(h.unflatten(-1, (8, 2))) * self.turn * self.freqs_cis
        h = torch.view_as_real(turned).flatten(-2).to(kind).unflatten(-1, (4, -1))
        return ((h @ h.mT + self.causal).softmax(-1) @ h).flatten(-2)

    def forward(self, x):
        return super().forward(x).double()


@foreign(
    blocks=("first", "precise", "last"),
    zero="another dtype than recipe.dtype (precise.weight, precise.bias, outside.weight",
)
class PreciseBlock(Layers):
    """Layers whose parameters are float64 in every precision, one of them a block."""

    def more(self, inputs):
        self.precise, self.outside = (nn.Linear(16, 16, dtype=torch.float64) for _ in range(2))

    def between(self, h):
        return self.outside(self.precise(h.double())).to(h.dtype)


# buffers_in_forward: what a forward pass in training mode changes


@foreign(blocks=("first", "norm", "last"), short=())
class BatchNorm(Layers):
    """Batch norm, which does not take one sample."""

    def more(self, inputs):
        self.norm = nn.BatchNorm1d(16)

    def between(self, h):
        return self.norm(h)


# sometimes_unused: parameters without a gradient in some or all steps

UNUSED = dict.fromkeys(("ddp", "zero1", "zero3"), "never depends on (pooler.bias, pooler.weight)")
SOMETIMES = dict.fromkeys(ENGINES[1:], "depends on in some steps or for some samples only")


@foreign(**UNUSED)
class UnusedPooler(Layers):
    """A module that is never called."""

    def more(self, inputs):
        self.pooler = nn.Linear(16, 16)


@foreign(short=(), **SOMETIMES)
class SkippedExperts(Layers):
    """Experts that are not called without samples."""

    def more(self, inputs):
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        h = F.gelu(self.first(x))
        chosen, out = (9 * x[:, 0].abs()).long() % 4, torch.zeros_like(h)
        for number in chosen.unique().tolist():
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, rows, self.experts[number](h[rows]))
        return self.last(h + out)


# frozen: parameters that are not trained


@foreign(blocks=("first", "teacher", "last"), short=("fsdp", "zero3"), long=("ddp", "zero1"))
class FrozenParts(Layers):
    """Parameters of int8 and bfloat16, a deep copy of a trained layer, and batch norm that stays in evaluation mode."""

    def more(self, inputs):
        codes = (torch.arange(256) * 37 % 255 - 127).to(torch.int8).view(16, 16)
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.base = nn.Parameter((torch.randn(16, 16) / 4).bfloat16(), requires_grad=False)
        self.teacher = copy.deepcopy(self.first).requires_grad_(False)
        self.norm = nn.BatchNorm1d(16).requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def between(self, h):
        return self.norm(h + F.linear(h, self.codes.to(h.dtype) / 127) + F.linear(h, self.base.to(h.dtype)))

    def forward(self, x):
        return self.last(self.between(F.gelu(self.first(x))) - self.teacher(x))


# shapes_and_ties: shared weights, and parameters of unusual shapes, strides and names


@foreign(blocks=("a", "b", "layers.*"))
class TiedByVariable(Layers):
    """A weight that two blocks share, inside of one, and a list with the same module twice."""

    def more(self, inputs):
        self.a, self.b = nn.Sequential(nn.Linear(16, 16), nn.GELU()), nn.Linear(16, 16)
        self.a[0].weight = self.b.weight
        shared = nn.Linear(16, 16)
        self.layers = nn.ModuleList([shared, nn.Linear(16, 16), shared])

    def between(self, h):
        h = self.b(self.a(h))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return h


@foreign(
    blocks=("middle", "first"),
    short=("ddp",),
    fsdp="used outside of its forward (first.weight)",
)
class TransposedTieOfBlock(nn.Module):
    """A block's weight used again, transposed, outside of it."""

    def __init__(self, *, inputs, outputs):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(inputs, 16), nn.Linear(16, 16), nn.Linear(inputs, outputs)

    def forward(self, x):
        h = F.gelu(self.middle(self.first(x)))
        return self.last(F.linear(h, self.first.weight.t()))


SCALAR = "parameters without dimensions (scale)"


@foreign(short=("ddp",), fsdp=SCALAR, zero=SCALAR)
class ScalarParameter(Layers):
    def more(self, inputs):
        self.scale = nn.Parameter(torch.tensor(2.0))

    def between(self, h):
        return h * self.scale


@foreign(blocks=("first", "narrow", "wide"))
class UnusualParameters(Layers):
    """Of one row, which is fewer than ranks, and of prime sizes; one that is transposed in its storage."""

    def more(self, inputs):
        self.narrow, self.wide, self.prime = nn.Linear(16, 1), nn.Linear(1, 13), nn.Linear(13, 16)
        self.token, self.gate = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter((torch.randn(16, 16) / 4).t())

    def between(self, h):
        h = torch.cat((self.token.expand(len(h), 1, 16), h[:, None]), dim=1).sum(1)
        return h * F.silu(h @ self.gate) + self.prime(F.gelu(self.wide(self.narrow(h))))


# constructors: what a constructor does besides drawing weights


@foreign()
class ManyWays(Layers):
    """Weights drawn by apply(), scaled through .data, set under no_grad, or from NumPy, and buffers like these.

    Also a forward hook, and a tensor that is neither parameter nor buffer.
    """

    def more(self, inputs):
        generator = np.random.default_rng(7)
        self.apply(self._draw)
        self.register_buffer("frequencies", torch.randn(inputs, inputs))
        self.register_buffer("order", torch.from_numpy(generator.permutation(16)), persistent=False)
        self.gains = torch.linspace(0.5, 1.5, 16)
        self.first.weight = nn.Parameter(torch.from_numpy(generator.normal(size=(16, inputs)).astype(np.float32)))
        self.first.weight.data /= 3
        self.last.weight.data = self.last.weight.data / 4
        with torch.no_grad():
            self.first.bias[:8] = 0.5
        self.first.register_forward_hook(lambda module, args, output: output + self.last.in_features / 16)

    @staticmethod
    def _draw(module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.2)

    def between(self, h):
        return h[:, self.order] * self.gains.to(h)

    def forward(self, x):
        return super().forward((x @ self.frequencies).sin())


# refused: by every engine


@foreign(every="has complex parameters (filter)")
class FrequencyFilter(Layers):
    def more(self, inputs):
        self.filter = nn.Parameter(torch.exp(1j * torch.rand(16)))

    def between(self, h):
        return torch.fft.ifft(torch.fft.fft(h) * self.filter).real


@foreign(every="besides the statistics of batch norm (calls, first.steps, generator and 3 more)")
class CountedSteps(Layers):
    """Counts of steps, each kept in another way, a parameter that is set, and a generator of random numbers."""

    def more(self, inputs):
        self.first.register_buffer("steps", torch.tensor(0.0))
        self.register_buffer("replaced", torch.tensor(0))
        self.register_buffer("unsaved", torch.tensor(0.0), persistent=False)
        self.scale = nn.Parameter(torch.ones(16), requires_grad=False)
        self.calls, self.generator = 0, torch.Generator().manual_seed(5)

    def between(self, h):
        self.first.steps += 1
        self.replaced = self.replaced + 1
        self.unsaved = self.unsaved + 1
        self.scale.mul_(0.9)
        self.calls += 1
        return h * self.scale * torch.rand(16, generator=self.generator)


@foreign(every="the constructor of model number_of_weight reads a weight")
class NumberOfWeight(Layers):
    def more(self, inputs):
        self.scale = float(self.first.weight.detach().std())


@foreign(every="values made from parameters in the constructor (mask)")
class AttributeOfWeight(Layers):
    def more(self, inputs):
        self.mask = self.first.weight.detach().abs() > 0.1


@foreign(every="draws projection, scale, which no file of weights has")
class UnsavedRandomValues(Layers):
    def more(self, inputs):
        self.register_buffer("projection", torch.randn(16, 16) / 4, persistent=False)
        self.scale = random.uniform(0.5, 2)


@foreign(every="hooks on parameters (first.weight)")
class GradientHook(Layers):
    def more(self, inputs):
        self.first.weight.register_hook(lambda gradient: 2 * gradient)


@foreign(every="embeddings with sparse gradients (table)")
class SparseEmbedding(Layers):
    def more(self, inputs):
        self.table = nn.Embedding(50, 16, sparse=True)

    def between(self, h):
        return h + self.table((h[:, :2] > 0).long()).sum(1)


@foreign(every="returns a dict with the keys y, hidden")
class DictionaryOutput(Layers):
    def forward(self, x):
        return {"y": super().forward(x), "hidden": x}


@foreign(every="depends on no trained parameter")
class DetachedOutput(Layers):
    def forward(self, x):
        return super().forward(x).detach()


# A chain, which pipelines split


@foreign(blocks=["layers.*"], short=())
class AveragingChain(Chain):
    """Each stage has a batch norm, which also takes one sample."""

    class Averaged(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(8)

        def forward(self, h):
            return h + F.gelu(self.linear(self.norm(h.unflatten(-1, (8, -1))).flatten(-2)))

    def __init__(self, *, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.layers = nn.ModuleList(self.Averaged(16) for _ in range(4))

    def segments(self):
        layers = [Segment((f"layers.{number}",), layer) for number, layer in enumerate(self.layers)]
        return [Segment(("first",), self.first), *layers, Segment(("last",), self.last)]


FILES = registry.names
registry.names = lambda kind: (*FILES(kind), *MODELS) if kind == "model" else FILES(kind)


def run_of(name, strategy, **recipe):
    """A run of a model; its workload has the model's name."""
    single = tiny_run(DATA, **(RECIPE | recipe))
    args = {key: single.data.options[key] for key in ("inputs", "outputs")}
    plan = {"tensor": {}, "segments": 6 if name == "averaging_chain" else 0}
    model = single.model.model_copy(update=plan | {"name": name, "args": args, "blocks": MODELS[name].blocks})
    # A workload that every strategy takes.
    run = tiny_run("llama2", strategy, **(RECIPE | recipe))
    same = {key: getattr(single, key) for key in ("data", "task", "recipe")}
    return run.model_copy(update=same | {"workload": name, "model": model})


def plain_training(run, folder):
    """What plain PyTorch makes of a run, without a file of initial weights (see reference.py)."""
    torch.manual_seed(run.seed)
    network = MODELS[run.workload].model(**run.model.args)
    reference.in_precision(network, getattr(torch, run.recipe.dtype))
    return reference.train_network(network, run.model_dump(mode="json"), folder)
