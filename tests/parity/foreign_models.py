"""Models as other people write them: one for each rule of settings/model_rules.py that a model of ours can break, and
one for each property that is treated specially.

(Rules about models of the transformers library: test_transformers.py, about chains: foreign.py and
tests/unit/test_contents.py.) All are regressions, (batch, inputs) to (batch, outputs), and know nothing about ranks or
this project.
"""

import copy
import math
import random
import re
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ENGINES = ("single", "ddp", "fsdp", "zero1", "zero3")


@dataclass(frozen=True)
class Foreign:
    """A model and what is expected of it.

    `expects` says per engine: "equal" or "refused: words of the sentence". `short` and `long`: strategies that it is
    trained under in each form, to losses and weights that are those of plain PyTorch on one device.
    """

    model: type[nn.Module]
    kind: str
    blocks: list[str]
    expects: dict[str, str]
    short: tuple[str, ...] = ()
    long: tuple[str, ...] = ()


MODELS: dict[str, Foreign] = {}


def foreign(kind, blocks=("first", "last"), short=("fsdp",), long=(), **expects):
    """`expects`: engines that refuse it; `zero` stands for both."""
    groups = {"every": ENGINES, "zero": ENGINES[3:]}
    each = {engine: value for key, value in expects.items() for engine in groups.get(key, (key,))}
    assert set(each) <= set(ENGINES), each

    def add(model):
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", model.__name__).lower()
        forms = ((), ()) if kind == "refused" else (short, long)
        MODELS[name] = Foreign(model, kind, list(blocks), dict.fromkeys(ENGINES, "equal") | each, *forms)
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


@foreign("dtypes", short=("fsdp", "fsdp_offload", "zero2"), long=("dp", "hsdp"))
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
    "dtypes",
    blocks=("first", "precise", "last"),
    zero="refused: another dtype than recipe.dtype (precise.weight, precise.bias, outside.weight",
)
class PreciseBlock(Layers):
    """Layers whose parameters are float64 in every precision, one of them a block."""

    def more(self, inputs):
        self.precise, self.outside = (nn.Linear(16, 16, dtype=torch.float64) for _ in range(2))

    def between(self, h):
        return self.outside(self.precise(h.double())).to(h.dtype)


# buffers_in_forward: what a forward pass in training mode changes


@foreign("buffers_in_forward", blocks=("first", "norm", "last"), short=())
class BatchNorm(Layers):
    """Batch norm, which does not take one sample."""

    def more(self, inputs):
        self.norm = nn.BatchNorm1d(16)

    def between(self, h):
        return self.norm(h)


# sometimes_unused: parameters without a gradient in some or all steps

UNUSED = {"ddp": "refused: never depends on (pooler.bias, pooler.weight)"}
SOMETIMES = dict.fromkeys(ENGINES[1:], "refused: depends on in some steps or for some samples only")


@foreign("sometimes_unused", short=("fsdp", "zero3"), long=("zero1",), **UNUSED)
class UnusedPooler(Layers):
    """A module that is never called."""

    def more(self, inputs):
        self.pooler = nn.Linear(16, 16)


@foreign("sometimes_unused", short=(), **SOMETIMES)
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


@foreign("frozen", blocks=("first", "teacher", "last"), short=("fsdp", "zero3"), long=("ddp", "zero1"))
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


@foreign("shapes_and_ties", blocks=("a", "b", "layers.*"))
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


SCALAR = "refused: parameters without dimensions (scale)"


@foreign("shapes_and_ties", short=("ddp",), fsdp=SCALAR, zero=SCALAR)
class ScalarParameter(Layers):
    def more(self, inputs):
        self.scale = nn.Parameter(torch.tensor(2.0))

    def between(self, h):
        return h * self.scale


@foreign("shapes_and_ties", blocks=("module", "narrow", "_orig_mod"))
class UnusualParameters(nn.Module):
    """Of prime sizes, and of size one: fewer rows than ranks; of modules named as wrappers name theirs; two parts of a
    storage, of which one is transposed, and a frozen row that is expanded to all rows.
    """

    def __init__(self, *, inputs, outputs):
        super().__init__()
        self.module, self.narrow, self._orig_mod = nn.Linear(inputs, 13), nn.Linear(13, 1), nn.Linear(1, 16)
        self._fsdp_wrapped_module, self._checkpoint_wrapped_module = nn.Linear(16, 16), nn.Linear(16, 16)
        self.weight, self.token = nn.Linear(16, outputs), nn.Parameter(torch.zeros(1, 1, 16))
        joined = torch.randn(32, 16) / 4
        self.up, self.gate = nn.Parameter(joined[:16]), nn.Parameter(joined[16:].t())
        self.row = nn.Parameter(torch.linspace(-1, 1, 16).expand(16, 16), requires_grad=False)

    def forward(self, x):
        h = self._orig_mod(self.narrow(F.gelu(self.module(x))))
        h = torch.cat((self.token.expand(len(x), 1, 16), h[:, None]), dim=1).sum(1)
        h = h @ self.row + F.linear(h, self.up) * F.silu(h @ self.gate)
        return self.weight(self._checkpoint_wrapped_module(F.gelu(self._fsdp_wrapped_module(h))))


# constructors: what a constructor does besides drawing weights


@foreign("constructors")
class ManyWays(Layers):
    """Weights drawn by apply(), scaled through .data, set under no_grad, or from NumPy, and buffers like these.

    Also a forward hook, a tensor that is neither parameter nor buffer, and a forward pass to find a size.
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
            self.after = nn.Linear(F.avg_pool1d(torch.zeros(1, 16), 2).shape[-1], 16)
        self.first.register_forward_hook(lambda module, args, output: output + self.last.in_features / 16)

    @staticmethod
    def _draw(module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.2)
            nn.init.zeros_(module.bias)

    def between(self, h):
        return self.after(F.avg_pool1d(h[:, self.order] * self.gains.to(h), 2))

    def forward(self, x):
        return super().forward((x @ self.frequencies).sin())


# refused: by every engine


@foreign("refused", every="refused: has complex parameters (filter)")
class FrequencyFilter(Layers):
    def more(self, inputs):
        self.filter = nn.Parameter(torch.exp(1j * torch.rand(16)))

    def between(self, h):
        return torch.fft.ifft(torch.fft.fft(h) * self.filter).real


@foreign("refused", every="refused: besides the statistics of batch norm (calls, first.steps, generator and 3 more)")
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


@foreign("refused", every="refused: the constructor of model number_of_weight reads a weight")
class NumberOfWeight(Layers):
    def more(self, inputs):
        self.scale = float(self.first.weight.detach().std())


@foreign("refused", every="refused: values made from parameters in the constructor (mask)")
class AttributeOfWeight(Layers):
    def more(self, inputs):
        self.mask = self.first.weight.detach().abs() > 0.1


@foreign("refused", every="refused: draws projection, scale, which no file of weights has")
class UnsavedRandomValues(Layers):
    def more(self, inputs):
        self.register_buffer("projection", torch.randn(16, 16) / 4, persistent=False)
        self.scale = random.uniform(0.5, 2)


@foreign("refused", every="refused: hooks on parameters (first.weight)")
class GradientHook(Layers):
    def more(self, inputs):
        self.first.weight.register_hook(lambda gradient: 2 * gradient)


@foreign("refused", every="refused: embeddings with sparse gradients (table)")
class SparseEmbedding(Layers):
    def more(self, inputs):
        self.table = nn.Embedding(50, 16, sparse=True)

    def between(self, h):
        return h + self.table((h[:, :2] > 0).long()).sum(1)


@foreign("refused", every="refused: returns a dict with the keys y, hidden")
class DictionaryOutput(Layers):
    def forward(self, x):
        return {"y": super().forward(x), "hidden": x}


@foreign("refused", every="refused: depends on no trained parameter")
class DetachedOutput(Layers):
    def forward(self, x):
        return super().forward(x).detach()
