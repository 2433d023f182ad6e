"""Models as other people write them: one property each, and what an engine may be expected to make of it.

All are regressions, (batch, inputs) to (batch, outputs), and know nothing about ranks or this project.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import spectral_norm

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
