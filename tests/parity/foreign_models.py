"""Models as other people write them: one property each, and what an engine may be expected to make of it.

All are regressions, (batch, inputs) to (batch, outputs), and know nothing about ranks or this project.
"""

import copy
import itertools
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm

ENGINES = ("single", "ddp", "fsdp", "zero1", "zero3")
Class = TypeVar("Class", bound=type[nn.Module])


@dataclass(frozen=True)
class Foreign:
    """A model and what is expected of it.

    `expects` says per engine: "equal" (losses and weights are those of plain PyTorch on one device), "differs: why",
    or "refused: why". `statistics` are buffers that depend on which samples a rank has seen, at equal losses.
    """

    model: type[nn.Module]
    kind: str
    blocks: list[str]
    property: str
    expects: dict[str, str]
    statistics: tuple[str, ...]


MODELS: dict[str, Foreign] = {}


def foreign(
    kind: str, text: str, blocks: tuple[str, ...] = ("first", "last"), statistics: tuple[str, ...] = (), **expects: str
) -> Callable[[Class], Class]:
    """`expects`: engines that are not expected to be equal; `ranks` stands for all but single, `zero` for both."""
    groups = {"every": ENGINES, "ranks": ENGINES[1:], "zero": ENGINES[3:]}
    each = {engine: value for key, value in expects.items() for engine in groups.get(key, (key,))}
    assert set(each) <= set(ENGINES), each

    def add(model: Class) -> Class:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", model.__name__).lower()
        MODELS[name] = Foreign(model, kind, list(blocks), text, dict.fromkeys(ENGINES, "equal") | each, statistics)
        return model

    return add


# dtypes: what is not of the training's dtype


@foreign("dtypes", "a complex buffer that is not saved")
class RotaryBuffer(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8, outputs)
        angles = torch.arange(1, 5, dtype=torch.float32)
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.view_as_complex(self.first(x).unflatten(-1, (4, 2)))
        return self.last(F.gelu(torch.view_as_real(h * self.freqs_cis).flatten(-2)))


@foreign("dtypes", "a saved integer above 2^24")
class LargeInteger(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("ident", torch.tensor([16777217]))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x))) * (1 + self.ident % 2)


@foreign("dtypes", "a complex buffer that is saved")
class SavedRotary(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("turn", torch.exp(1j * torch.linspace(0.1, 3, 8)))

    def forward(self, x: Tensor) -> Tensor:
        real, imaginary = F.gelu(self.first(x)).chunk(2, dim=-1)
        turned = torch.complex(real, imaginary) * self.turn
        return self.last(torch.cat((turned.real, turned.imag), dim=-1))


@foreign(
    "dtypes",
    "a complex parameter: a filter of frequencies",
    blocks=("first", "spectral", "last"),
    fsdp="refused: AdamW does not update complex parameters that fully_shard has split",
    zero="refused: ZeRO keeps real master weights",
)
class FrequencyFilter(nn.Module):
    class Spectral(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.filter = nn.Parameter(torch.exp(1j * torch.rand(width // 2 + 1)))

        def forward(self, h: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(h) * self.filter, n=h.shape[-1])

    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.spectral, self.last = nn.Linear(inputs, 16), self.Spectral(16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.spectral(self.first(x))))


@foreign("dtypes", "a complex128 matrix in a model of another precision")
class FourierMatrix(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        rows = torch.arange(16, dtype=torch.float64)
        self.register_buffer("matrix", torch.exp(-2j * math.pi / 16 * torch.outer(rows, rows)))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(F.gelu((h.to(torch.complex128) @ self.matrix).imag.to(h.dtype)))


@foreign("dtypes", "integers above 2^53, saved and not saved")
class HashSeeds(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.table, self.last = nn.Linear(inputs, 16), nn.Embedding(8, 16), nn.Linear(16, outputs)
        self.register_buffer("seeds", torch.tensor([2**53 + 1, 2**60 + 3]))
        self.register_buffer("salt", torch.tensor(2**53 + 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = (x[:, :1] > 0).long() * self.seeds + self.salt
        return self.last(F.gelu(self.first(x) + self.table(rows % 8).sum(1)))


@foreign("dtypes", "quantized weights: an int8 table with scales")
class QuantizedMiddle(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("codes", (torch.arange(256) * 37 % 255 - 127).to(torch.int8).view(16, 16))
        self.register_buffer("scales", torch.linspace(0.001, 0.01, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        return self.last(h + F.linear(h, self.codes.to(h.dtype) * self.scales[:, None]))


@foreign("dtypes", "two 4-bit codes in a byte, taken apart by shifts")
class PackedCodes(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("packed", torch.arange(8, dtype=torch.uint8) * 31)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        codes = torch.cat((self.packed >> 4, self.packed & 15))
        return self.last(F.gelu(h * (codes.to(h.dtype) / 8)))


@foreign("dtypes", "an int16 index that is not saved", blocks=("first",))
class PositionIndex(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.position_bias = nn.Parameter(torch.zeros(31))
        distance = torch.arange(16)[:, None] - torch.arange(16) + 15
        self.register_buffer("index", distance.to(torch.int16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        return self.last(h + h @ self.position_bias[self.index.long()])


@foreign("dtypes", "a bool mask that selects columns")
class KeptColumns(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 24), nn.Linear(16, outputs)
        self.register_buffer("keep", torch.arange(24) % 3 != 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x))[:, self.keep])


@foreign("dtypes", "-inf and NaN in buffers, saved and not saved")
class NotFinite(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("causal", torch.full((4, 4), -math.inf).triu(1), persistent=False)
        self.register_buffer("measured", torch.tensor([0.5, math.nan, 2.0, math.nan] * 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).unflatten(-1, (4, 4))
        h = ((h @ h.mT + self.causal).softmax(-1) @ h).flatten(-2)
        return self.last(h * self.measured.nan_to_num(nan=1.0))


@foreign("dtypes", "a float64 buffer whose differences vanish in float32")
class TimeStamps(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("seconds", 1.7e9 + torch.arange(16, dtype=torch.float64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(F.gelu(h * (self.seconds - self.seconds[0]).to(h.dtype)))


@foreign(
    "dtypes",
    "a block whose parameters are float64 in every precision",
    blocks=("first", "precise", "last"),
    zero="refused: ZeRO keeps float32 master weights",
)
class PreciseBlock(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.precise = nn.Linear(16, 16, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(F.gelu(self.precise(h.double()).to(h.dtype)))


@foreign("dtypes", "float16 and bfloat16 tables in a model of another precision")
class HalfTables(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("gain", torch.linspace(0.3, 1.7, 16).half())
        self.register_buffer("shift", torch.linspace(-0.7, 0.9, 16).bfloat16(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(F.gelu(h * self.gain.to(h.dtype) + self.shift.to(h.dtype)))


@foreign("dtypes", "an integer buffer without dimensions that sets a shape")
class IntegerScalar(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("groups", torch.tensor(4, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).unflatten(-1, (int(self.groups), -1))
        return self.last(F.layer_norm(h, h.shape[-1:]).flatten(-2))


@foreign("dtypes", "a state that is not a tensor (get_extra_state)")
class ExtraState(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.scale = 0.5

    def get_extra_state(self) -> dict[str, float]:
        return {"scale": self.scale}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x) * self.scale))


# buffers_in_forward: what a forward pass in training mode changes

OWN_SAMPLES = "differs: each rank has statistics of its own samples"


@foreign("buffers_in_forward", "batch norm, which does not take one sample", ranks=OWN_SAMPLES)
class BatchNorm(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


@foreign("buffers_in_forward", "batch norm inside a block", blocks=("body",), ranks=OWN_SAMPLES)
class BatchNormBlock(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 16, bias=False), nn.BatchNorm1d(16), nn.GELU())
        self.last = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


@foreign("buffers_in_forward", "a codebook that follows its vectors (VQ)", ranks=OWN_SAMPLES)
class Codebook(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("codes", torch.linspace(-1, 1, 128).sin().view(8, 16))
        self.register_buffer("sizes", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        nearest = torch.cdist(h.detach(), self.codes).argmin(-1)
        chosen = self.codes[nearest]
        if self.training:
            hot = F.one_hot(nearest, 8).to(h.dtype)
            self.sizes.lerp_(hot.sum(0), 0.1)
            self.codes.lerp_(hot.T @ h.detach() / self.sizes[:, None].clamp(min=1), 0.1)
        return self.last(h + (chosen - h).detach())


@foreign("buffers_in_forward", "a count of steps that scales the output")
class StepCount(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.last(F.gelu(self.first(x))) * (self.steps / 10).clamp(max=1)


@foreign("buffers_in_forward", "a count of samples, in floating point", statistics=("seen",))
class SampleCount(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.add_(len(x))
        return self.last(F.gelu(self.first(x)))


@foreign("buffers_in_forward", "fake quantization by the largest value so far", ranks=OWN_SAMPLES)
class LargestValue(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("largest", torch.tensor(1e-6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.largest.copy_(torch.maximum(self.largest, h.detach().abs().max()))
        step = self.largest / 127
        return self.last(F.gelu(h + ((h / step).round() * step - h).detach()))


@foreign("buffers_in_forward", "inputs normalized by moving averages, in training, too", ranks=OWN_SAMPLES)
class MovingAverages(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("square", torch.ones(inputs))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
            self.square.lerp_(x.square().mean(0), 0.1)
        return self.last(F.gelu(self.first((x - self.mean) / self.square.sqrt())))


@foreign("buffers_in_forward", "a count that is replaced, not changed in place")
class ReplacedCount(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("steps", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps = self.steps + 1
        return self.last(F.gelu(self.first(x))) / (1 + self.steps.rsqrt() if self.training else 1)


@foreign("buffers_in_forward", "moving averages that are replaced, not changed in place", ranks=OWN_SAMPLES)
class ReplacedAverages(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("center", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.center = 0.9 * self.center + 0.1 * h.detach().mean(0)
        return self.last(F.gelu(h - self.center))


@foreign("buffers_in_forward", "a count of steps that is a Python number: no checkpoint has it")
class PythonCount(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.last(F.gelu(self.first(x))) * min(1, self.steps / 10)


@foreign("buffers_in_forward", "noise drawn into a buffer", ranks="differs: each rank may draw its own random numbers")
class NoiseBuffer(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("noise", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.noise.normal_(std=0.1)
        return self.last(F.gelu(self.first(x) + self.noise))


@foreign("buffers_in_forward", "dropout of columns by a generator of its own: no checkpoint has it")
class OwnGenerator(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        if self.training:
            h = h * (torch.rand(16, generator=self.generator) > 0.2).to(h) / 0.8
        return self.last(h)


@foreign("buffers_in_forward", "dropout of columns by a generator whose state is a buffer of bytes")
class GeneratorState(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("state", torch.Generator().manual_seed(5).get_state())

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        if self.training:
            generator = torch.Generator()
            generator.set_state(self.state.cpu())
            h = h * (torch.rand(16, generator=generator) > 0.2).to(h) / 0.8
            self.state.copy_(generator.get_state())
        return self.last(h)


@foreign(
    "buffers_in_forward",
    "spectral norm as a hook (torch.nn.utils.spectral_norm)",
    zero3="refused: the constructor computes with a weight, which zero.Init has split",
)
class SpectralHook(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = spectral_norm(nn.Linear(inputs, 16)), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("buffers_in_forward", "a bias of experts that balances their load", blocks=("first",), ranks=OWN_SAMPLES)
class BalancedExperts(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last, self.router = nn.Linear(inputs, 16), nn.Linear(16, outputs), nn.Linear(16, 4)
        self.experts = nn.Parameter(torch.randn(4, 16, 16) / 4)
        self.register_buffer("balance", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        scores = self.router(h).sigmoid()
        chosen = (scores + self.balance).argmax(-1)
        if self.training:
            load = torch.bincount(chosen, minlength=4)
            self.balance += 0.1 * (len(x) / 4 - load).sign()
        out = torch.einsum("bi,bio->bo", h, self.experts[chosen])
        return self.last(h + out * scores.gather(-1, chosen[:, None]))


@foreign("buffers_in_forward", "a queue of past vectors with a pointer (MoCo)", ranks=OWN_SAMPLES)
class VectorQueue(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("queue", torch.zeros(100, 16))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        past = (h @ self.queue.T.clone()).softmax(-1) @ self.queue.clone()
        if self.training:
            self.queue[(self.pointer + torch.arange(len(h))) % len(self.queue)] = h.detach()
            self.pointer[0] = (self.pointer[0] + len(h)) % len(self.queue)
        return self.last(F.gelu(h - past))


# sometimes_unused: parameters without a gradient in some or all steps

UNUSED = {
    "ddp": "refused: needs find_unused_parameters",
    "zero": "differs: ZeRO decays weights without a gradient, AdamW leaves them out",
}
BRANCHES = {
    "ddp": "refused: needs find_unused_parameters",
    "fsdp": "refused: ranks have gradients of different parameters",
    "zero1": "differs: the branch of half a batch, and ZeRO steps without a gradient",
    "zero3": "refused: ranks gather different parameters",
}


@foreign("sometimes_unused", "a branch that depends on the batch", **BRANCHES)
class DataBranch(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        return self.last(self.a(h) if x.sum() > 0 else self.b(h))


@foreign("sometimes_unused", "a module that is never called", **UNUSED)
class UnusedPooler(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last, self.pooler = nn.Linear(inputs, 16), nn.Linear(16, outputs), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("sometimes_unused", "two modules that take turns, step by step", **UNUSED)
class TakingTurns(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.even, self.odd = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        if not self.training:
            return self.last((self.even(h) + self.odd(h)) / 2)
        self.steps += 1
        return self.last(self.odd(h) if self.steps % 2 else self.even(h))


@foreign("sometimes_unused", "blocks that are left out in some steps (layer drop)", blocks=("layers.*",), **UNUSED)
class LayerDrop(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.steps += self.training
        for number, layer in enumerate(self.layers):
            if not self.training or (self.steps + number) % 3:
                h = h + F.gelu(layer(h))
        return self.last(h)


@foreign("sometimes_unused", "a second output that is computed and dropped", **UNUSED)
class DroppedHead(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last, self.other = nn.Linear(inputs, 16), nn.Linear(16, outputs), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        self.logits = self.other(h)
        return self.last(h)


@foreign("sometimes_unused", "experts that are not called without samples", **BRANCHES)
class SkippedExperts(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        chosen, out = (2 * x[:, 0].abs()).long().clamp(max=7), torch.zeros_like(h)
        for number in chosen.unique().tolist():
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, rows, self.experts[number](h[rows]))
        return self.last(h + out)


@foreign("sometimes_unused", "experts that are called with no samples")
class EmptyExperts(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        chosen, out = (2 * x[:, 0].abs()).long().clamp(max=7), torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(h[rows]))
        return self.last(h + out)


@foreign("sometimes_unused", "rows of an embedding that never occur")
class EmbeddingRows(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.table, self.last = nn.Linear(inputs, 16), nn.Embedding(50, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        rows = (x > 0).long() + 10 * torch.arange(x.shape[1]) % 50
        return self.last(F.gelu(self.first(x) + self.table(rows).sum(1)))


@foreign("sometimes_unused", "an embedding with sparse gradients", every="refused: AdamW takes no sparse gradients")
class SparseEmbedding(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.table = nn.Embedding(50, 16, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x) + self.table((x > 0).long()).sum(1)))


@foreign("sometimes_unused", "a module that is called without gradients", **UNUSED)
class NoGradUse(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(inputs, 16), nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = self.gate(x).sigmoid()
        return self.last(F.gelu(self.first(x)) * gate)


@foreign("sometimes_unused", "a module that only evaluation calls", **UNUSED)
class EvaluationOnly(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.calibration = nn.Linear(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(F.gelu(self.first(x)))
        return y if self.training else self.calibration(y)


@foreign("sometimes_unused", "a gradient that is exactly zero: 0 times a module")
class ZeroGradient(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last, self.other = nn.Linear(inputs, 16), nn.Linear(16, outputs), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        return self.last(h) + 0 * self.other(h)


@foreign("sometimes_unused", "a module that joins at the sixth step", **UNUSED)
class LateModule(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.late, self.last = nn.Linear(inputs, 16), nn.Linear(16, 16), nn.Linear(16, outputs)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        self.steps += self.training
        return self.last(h if self.steps < 6 else h + self.late(h))


# frozen: parameters that are not trained, and parameters without values

DEEP_COPY = "refused: zero.Init cannot follow deep copies of split parameters (DeepSpeed#5543)"


@foreign("frozen", "a frozen first layer")
class FrozenFirst(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16).requires_grad_(False), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("frozen", "LoRA: frozen weights with trained factors beside them", blocks=("first", "middle", "last"))
class LowRank(nn.Module):
    class Adapted(nn.Module):
        def __init__(self, width: int, rank: int) -> None:
            super().__init__()
            self.base = nn.Linear(width, width).requires_grad_(False)
            self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, h: Tensor) -> Tensor:
            return self.base(h) + self.up(self.down(h))

    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(inputs, 16), self.Adapted(16, 2), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.middle(F.gelu(self.first(x)))))


@foreign("frozen", "a parameter of size zero", zero3="refused: ZeRO-3 cannot gather parameters without values")
class EmptyParameter(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.prompt = nn.Parameter(torch.empty(0, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        return self.last(torch.cat((self.prompt, h))[len(self.prompt) :])


@foreign("frozen", "everything frozen but the head", blocks=("body.*",))
class HeadOnly(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU())
        self.last = nn.Linear(16, outputs)
        for parameter in self.body.parameters():
            parameter.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


@foreign("frozen", "a frozen block between trained ones", blocks=("layers.*",))
class FrozenBlock(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.layers[1].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.last(h)


@foreign("frozen", "a frozen embedding of given values", blocks=("table", "last"))
class FrozenEmbedding(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.linspace(-1, 1, 64 * 16).sin().view(64, 16))
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        rows = ((x > 0).long() * 2 ** torch.arange(x.shape[1])).sum(1) % 64
        return self.last(F.gelu(self.first(x) + self.table(rows)))


@foreign("frozen", "frozen batch norm that stays in evaluation mode")
class FrozenBatchNorm(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.norm = nn.BatchNorm1d(16).requires_grad_(False)

    def train(self, mode: bool = True) -> "FrozenBatchNorm":
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


@foreign("frozen", "frozen biases, trained weights")
class FrozenBiases(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not name.endswith("bias"))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("frozen", "frozen weights, trained biases")
class TrainedBiases(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("frozen", "a frozen weight that two layers share", blocks=("up", "down"))
class FrozenTie(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16)
        self.down.weight = self.up.weight
        self.up.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.down(F.gelu(self.up(self.first(x)))))


@foreign("frozen", "a layer without inputs, frozen", zero3="refused: ZeRO-3 cannot gather parameters without values")
class FrozenEmpty(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.extra = nn.Linear(0, 16).requires_grad_(False)
        nn.init.ones_(self.extra.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x) + self.extra(x[:, :0])))


@foreign("frozen", "a frozen deep copy of a trained layer", blocks=("first", "teacher", "last"))
class FrozenTeacher(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.teacher = copy.deepcopy(self.first).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)) - self.teacher(x))


@foreign("frozen", "a frozen int8 parameter")
class IntegerParameter(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        codes = (torch.arange(256) * 37 % 255 - 127).to(torch.int8).view(16, 16)
        self.codes = nn.Parameter(codes, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        return self.last(h + F.linear(h, self.codes.to(h.dtype) / 127))


@foreign("frozen", "frozen bfloat16 weights under trained ones of another precision")
class FrozenBfloat16(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.base = nn.Parameter((torch.randn(16, 16) / 4).bfloat16(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        return self.last(h + F.linear(h, self.base.to(h.dtype)))


# shapes_and_ties: shared weights, and parameters of unusual shapes, strides and names

STRIDES = "refused: ZeRO broadcasts contiguous parameters"
READS_WEIGHT = "refused: the constructor computes with a weight, which zero.Init has split"
SPLIT_ELSEWHERE = "refused: a module reads a weight of another block, which is split"


@foreign("shapes_and_ties", "weights tied by attribute", blocks=("up", "down"))
class TiedWeights(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16)
        self.down.weight = self.up.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.down(F.gelu(self.up(self.first(x)))))


@foreign("shapes_and_ties", "weights tied by a local variable", blocks=("a", "b"))
class TiedByVariable(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        weight = nn.Parameter(torch.randn(16, 16) / 4)
        self.a.weight = weight
        self.b.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.b(F.gelu(self.a(self.first(x)))))


@foreign("shapes_and_ties", "a module that is called three times", blocks=("layer",))
class CalledThreeTimes(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(inputs, 16), nn.Linear(16, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for _ in range(3):
            h = h + F.gelu(self.layer(h))
        return self.last(h)


@foreign(
    "shapes_and_ties",
    "a parameter without dimensions",
    fsdp="refused: fully_shard does not support scalar parameters",
    zero="refused: ZeRO broadcasts parameters as bytes, which needs a dimension",
)
class ScalarParameter(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x) * self.scale))


@foreign("shapes_and_ties", "a transposed parameter", zero=STRIDES)
class TransposedParameter(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(24, outputs)
        self.middle = nn.Parameter((torch.randn(24, 16) / 4).t())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x) @ self.middle))


@foreign("shapes_and_ties", "weight norm (parametrizations)", zero3=READS_WEIGHT)
class WeightNorm(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = parametrizations.weight_norm(nn.Linear(inputs, 16)), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign(
    "shapes_and_ties", "nn.TransformerEncoder: deep copies of a layer", blocks=("encoder.layers.*",), zero3=DEEP_COPY
)
class Encoder(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 16), nn.Linear(16, outputs)
        layer = nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.encoder(self.first(x[..., None])).mean(1))


@foreign("shapes_and_ties", "an LSTM", blocks=("cells",))
class Lstm(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(1, 12, num_layers=2, batch_first=True), nn.Linear(12, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x[..., None])[0][:, -1])


@foreign("shapes_and_ties", "a GRU in both directions", blocks=("cells",))
class BothDirections(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.cells, self.last = nn.GRU(1, 8, bidirectional=True), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x.T[..., None])[0].mean(0))


@foreign("shapes_and_ties", "a weight shared by two of three blocks, inside them", blocks=("layers.*",))
class TiedAcrossBlocks(nn.Module):
    class Layer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, h: Tensor) -> Tensor:
            return h + self.down(F.gelu(self.up(h)))

    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.layers = nn.Sequential(*(self.Layer(16) for _ in range(3)))
        self.layers[2].down.weight = self.layers[0].down.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(self.first(x)))


@foreign("shapes_and_ties", "a weight used again, transposed, outside its module", blocks=("middle",))
class TransposedTie(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(inputs, 16), nn.Linear(16, 16), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.middle(self.first(x)))
        return self.last(F.linear(h, self.first.weight.t()))


@foreign(
    "shapes_and_ties",
    "a weight of a block used again, transposed, by another module",
    blocks=("first", "last"),
    fsdp=SPLIT_ELSEWHERE,
)
class TransposedTieOfBlock(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(inputs, 16), nn.Linear(16, 16), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.middle(self.first(x)))
        return self.last(F.linear(h, self.first.weight.t()))


@foreign("shapes_and_ties", "a list with the same module twice", blocks=("layers.*",))
class RepeatedModule(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        shared = nn.Linear(16, 16)
        self.layers = nn.ModuleList([shared, nn.Linear(16, 16), shared])

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.last(h)


@foreign("shapes_and_ties", "a buffer that two modules share: one writes, the other reads")
class SharedBuffer(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        steps = torch.tensor(0.0)
        self.first.register_buffer("steps", steps)
        self.last.register_buffer("steps", steps)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.first.steps += 1
        return self.last(F.gelu(self.first(x))) * (self.last.steps / 10).clamp(max=1)


@foreign(
    "shapes_and_ties",
    "a frozen expanded parameter: one row for all rows",
    ranks="refused: engines copy into a parameter, and its rows share memory",
)
class ExpandedParameter(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.middle = nn.Parameter(torch.linspace(-1, 1, 16).expand(16, 16), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        return self.last(h + h @ self.middle)


@foreign("shapes_and_ties", "prime sizes", blocks=("layers.*",))
class PrimeSizes(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        sizes = (inputs, 13, 7, 31, 3)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.last = nn.Linear(3, outputs)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.last(x)


@foreign("shapes_and_ties", "sizes of one: fewer rows than ranks", blocks=("narrow", "wide"))
class SizesOfOne(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.narrow, self.wide, self.last = nn.Linear(inputs, 1), nn.Linear(1, 16), nn.Linear(16, outputs)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat((self.token.expand(len(x), 1, 16), self.wide(self.narrow(x))[:, None]), dim=1)
        return self.last(F.gelu(h).sum(1))


@foreign("shapes_and_ties", "a convolution with five dimensions", blocks=("convolution",))
class FiveDimensions(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 36), nn.Linear(16, outputs)
        self.convolution = nn.Conv3d(2, 4, (2, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.convolution(self.first(x).view(-1, 2, 3, 3, 2))).flatten(1)[:, ::2])


@foreign("shapes_and_ties", "a ParameterList of ParameterDicts with names of unusual characters", blocks=("first",))
class UnusualNames(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        names = ("*", "[0]", "a b", "x/y", "µ", "weight:0", "{h}")
        self.shifts = nn.ParameterList([torch.randn(16), torch.randn(16)])
        self.gains = nn.ParameterDict({name: torch.randn(16) for name in names})
        self.add_module("last block", nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + sum(self.shifts)
        for gain in self.gains.values():
            h = h + F.gelu(h * gain) / len(self.gains)
        return self.last(self.get_submodule("last block")(h))


@foreign("shapes_and_ties", "modules named as wrappers name theirs", blocks=("module", "_orig_mod"))
class WrapperNames(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.module, self._orig_mod = nn.Linear(inputs, 16), nn.Linear(16, 16)
        self._fsdp_wrapped_module, self._checkpoint_wrapped_module = nn.Linear(16, 16), nn.Linear(16, 16)
        self.weight = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self._orig_mod(F.gelu(self.module(x)))
        return self.weight(self._checkpoint_wrapped_module(F.gelu(self._fsdp_wrapped_module(h))))


@foreign("shapes_and_ties", "an orthogonal weight (parametrizations)", blocks=("turn",), zero3=READS_WEIGHT)
class OrthogonalWeight(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.turn = parametrizations.orthogonal(nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.turn(self.first(x))))


@foreign("shapes_and_ties", "pruned weights: a hook and a mask made from them", zero3=READS_WEIGHT)
class PrunedWeight(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        prune.l1_unstructured(self.first, "weight", amount=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("shapes_and_ties", "a convolution in channels_last", blocks=("convolution",), zero=STRIDES)
class ChannelsLast(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 32), nn.Linear(8, outputs)
        self.convolution = nn.Conv2d(2, 8, 3).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.convolution(self.first(x).view(-1, 2, 4, 4))).mean((2, 3)))


@foreign("shapes_and_ties", "two parameters that are parts of one storage")
class SharedStorage(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        joined = torch.randn(32, 16) / 4
        self.gate, self.up = nn.Parameter(joined[:16]), nn.Parameter(joined[16:])

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(F.silu(F.linear(h, self.gate)) * F.linear(h, self.up))


# constructors_and_outputs: what a constructor does besides drawing weights, and what a forward pass returns

NO_TENSOR = "refused: the output is not a tensor"
MIXES = "differs: the output depends on the other samples of a rank's batch"
REPLACED = "refused: the constructor keeps the parameter that the engine replaces"


@foreign("constructors_and_outputs", "a mask made from a weight", blocks=("last",), zero3=READS_WEIGHT)
class MaskOfWeight(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("mask", (self.first.weight.detach().abs() > 0.1).float())

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight * self.mask.to(x.dtype)
        return self.last(F.gelu(F.linear(x, weight, self.first.bias)))


@foreign("constructors_and_outputs", "spectral norm (parametrizations): vectors made from a weight", zero3=READS_WEIGHT)
class SpectralNorm(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = parametrizations.spectral_norm(nn.Linear(inputs, 16)), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("constructors_and_outputs", "a number read from a weight", zero3=READS_WEIGHT)
class NumberOfWeight(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.scale = float(self.first.weight.std())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x) / self.scale))


@foreign("constructors_and_outputs", "weights drawn again by apply()")
class AppliedInit(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.apply(self._init)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.2)
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("constructors_and_outputs", "weights scaled in place through .data")
class ScaledWeight(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.first.weight.data *= 2
        self.last.weight.data = self.last.weight.data / 4

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign(
    "constructors_and_outputs",
    "weights copied in place under no_grad",
    blocks=("first", "same", "last"),
    zero3="refused: zero.Init has split the weight that the constructor writes",
)
class CopiedWeight(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.same, self.last = nn.Linear(inputs, 16), nn.Linear(16, 16), nn.Linear(16, outputs)
        with torch.no_grad():
            self.same.weight.copy_(torch.eye(16))
            self.same.bias[:8] = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.same(self.first(x))))


@foreign("constructors_and_outputs", "a random buffer that is saved")
class RandomBuffer(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 16), nn.Linear(16, outputs)
        self.register_buffer("frequencies", torch.randn(inputs, 16))

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.frequencies
        return self.last(F.gelu(self.first(torch.cat((angles.sin(), angles.cos()), dim=-1))))


@foreign("constructors_and_outputs", "a random buffer that is not saved")
class UnsavedRandomBuffer(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("projection", torch.randn(16, 16) / 4, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x) @ self.projection))


@foreign("constructors_and_outputs", "weights and a buffer from NumPy's generator")
class NumpyWeights(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        generator = np.random.default_rng(7)
        order = torch.from_numpy(generator.permutation(16))
        weight = torch.from_numpy(generator.normal(size=(16, inputs)) / 3)
        self.first.weight = nn.Parameter(weight.to(self.first.weight.dtype))
        self.register_buffer("order", order, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)[:, self.order] * self.order.add(1).log()))


@foreign("constructors_and_outputs", "an attribute drawn by Python's random: no checkpoint has it")
class RandomAttribute(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.scale = random.uniform(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x) * self.scale))


@foreign(
    "constructors_and_outputs",
    "a lazy layer: no shape before the first forward pass",
    every="refused: parameters without a shape (nn.LazyLinear)",
)
class LazyLayer(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.LazyLinear(16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign(
    "constructors_and_outputs", "a lazy layer whose shape a forward pass of the constructor sets", zero3=READS_WEIGHT
)
class SettledLazyLayer(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.LazyLinear(16), nn.Linear(16, outputs)
        self(torch.zeros(2, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("constructors_and_outputs", "a forward pass in the constructor to find a size", zero3=READS_WEIGHT)
class SizeByForward(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 5, 3), nn.GELU(), nn.Flatten())
        with torch.no_grad():
            size = self.first(torch.zeros(1, inputs)).shape[-1]
        self.last = nn.Linear(size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


@foreign("constructors_and_outputs", "a dictionary as output", every=NO_TENSOR)
class DictionaryOutput(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = F.gelu(self.first(x))
        return {"y": self.last(h), "hidden": h}


@foreign("constructors_and_outputs", "a tuple as output", every=NO_TENSOR)
class TupleOutput(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.gelu(self.first(x))
        return self.last(h), h


@foreign("constructors_and_outputs", "a list with one tensor as output", every=NO_TENSOR)
class ListOutput(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.last(F.gelu(self.first(x)))]


@foreign("constructors_and_outputs", "a dataclass as output", every=NO_TENSOR)
class DataclassOutput(nn.Module):
    @dataclass
    class Output:
        y: Tensor

    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Output:
        return self.Output(self.last(F.gelu(self.first(x))))


@foreign("constructors_and_outputs", "an output in float64 in every precision")
class Float64Output(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x))).double()


@foreign("constructors_and_outputs", "an output without a gradient", every="refused: no parameter gets a gradient")
class DetachedOutput(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x))).detach()


@foreign("constructors_and_outputs", "mean and deviation over the batch, without buffers", ranks=MIXES)
class CenteredBatch(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(F.gelu((h - h.mean(0)) / (h.std(0, correction=0) + 0.1)))


@foreign("constructors_and_outputs", "attention between the samples of a batch (contrastive)", ranks=MIXES)
class BatchAttention(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        return self.last(h + (h @ h.T).softmax(-1) @ h)


@foreign("constructors_and_outputs", "a running sum over the sorted batch", ranks=MIXES)
class SortedSum(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        h = F.gelu(self.first(x[order])).cumsum(0) / len(x)
        return self.last(h[order.argsort()])


@foreign("constructors_and_outputs", "a batch that is sorted and put back: samples do not mix")
class SortedAndBack(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.last(F.gelu(self.first(x[order])))[order.argsort()]


@foreign("constructors_and_outputs", "forward hooks of the constructor that change input and output")
class ForwardHooks(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.first.register_forward_hook(self._shift)

    def _shift(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        return output + self.last.in_features / 16

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("constructors_and_outputs", "a hook of the constructor on a parameter's gradient", fsdp=REPLACED)
class GradientHook(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        columns = (torch.arange(inputs) % 2).to(self.first.weight.dtype)
        self.first.weight.register_hook(lambda gradient: gradient * columns)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)))


@foreign("constructors_and_outputs", "a Python list of parameters that forward uses", fsdp=REPLACED, zero3=REPLACED)
class ListedParameter(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.listed = [self.first.weight, self.first.bias]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(F.linear(x, *self.listed)))


@foreign("constructors_and_outputs", "a tensor that is neither parameter nor buffer")
class PlainTensor(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.gains = torch.linspace(0.5, 1.5, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x) * self.gains.to(x)))


@foreign("constructors_and_outputs", "a weight with a parametrization of its own", zero3=READS_WEIGHT)
class SymmetricWeight(nn.Module):
    class Symmetric(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.triu() + weight.triu(1).mT

    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(inputs, 16), nn.Linear(16, 16), nn.Linear(16, outputs)
        parametrize.register_parametrization(self.middle, "weight", self.Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.middle(self.first(x))))


@foreign(
    "constructors_and_outputs", "a buffer that is the memory of a weight and follows it", fsdp=REPLACED, zero3=REPLACED
)
class AliasOfWeight(nn.Module):
    def __init__(self, *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)
        self.register_buffer("target", self.first.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x)) - F.linear(x, self.target))
