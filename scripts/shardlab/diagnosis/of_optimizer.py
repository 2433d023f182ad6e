"""Settings of an optimizer that explain an update, from the gradients of all steps up to it. Learning rate and weight
decay follow from the fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shardlab.diagnosis.capture_files import Capture
from shardlab.diagnosis.pair import Pair
from shardlab.diagnosis.stages import updates

if TYPE_CHECKING:
    from shardlab.diagnosis.evidence import Evidence

BETAS = ((0.9, 0.95, 0.8, 0.85, 0.5, 0.0), (0.999, 0.95, 0.98, 0.99, 0.9, 0.9999))
EPSILONS = (1e-8, 1e-6, 1e-5, 1e-7, 1e-9, 1e-10, 1e-4, 1e-3)
MOMENTA = (0.9, 0.0, 0.95, 0.99, 0.8, 0.5)
STEPS, TENSORS, VALUES, LEAST = 8, 16, 2_000, 12
"""Latest step, most tensors and values of each that are looked at, and fewest values of one that says something."""
SAME = 1.1
"""Settings that leave up to this times as much as the best ones are as good: the more usual ones count."""


@dataclass(frozen=True)
class _Model:
    """What an optimizer with some settings explains."""

    settings: str
    rest: float
    """Largest part of a tensor's update that it leaves."""
    predicted: dict[str, Tensor]


def look_at_settings(pair: Pair, step: int, names: list[str], found: "Evidence") -> bool:
    """Note if both updates are those of the same optimizer with other settings, and their difference, too."""
    both = [_best(capture, step, names) for capture in pair.captures]
    if both[0] is None or both[1] is None:
        return False
    own, other = both
    if max(own.rest, other.rest) >= pair.fits or own.settings == other.settings:
        found.exclude("other betas, eps or momentum", min(1.0, max(own.rest, other.rest)), "the update")
        return False
    off = {
        name: _sampled(updates(pair.actual, step)(name) - updates(pair.reference, step)(name)) for name in own.predicted
    }
    rest = max(
        float((off[name] - (own.predicted[name] - other.predicted[name])).norm() / off[name].norm()) for name in off
    )
    if not rest < max(pair.fits, 0.1):
        found.exclude("other betas, eps or momentum", rest)
        return False
    found.note("pattern", "settings")
    found.say(
        f"The update is that of {own.settings}; the reference's is that of {other.settings} (this leaves {rest:.1g} of "
        "the difference)."
    )
    return True


def _sampled(value: Tensor) -> Tensor:
    flat = value.double().flatten()
    return flat[:: -(-len(flat) // VALUES) or 1]


def _best(capture: Capture, step: int, names: list[str]) -> _Model | None:
    """Return the settings that explain a capture's update best; None if gradients are missing."""
    files = [capture.tensors(f"step{n}/clipped") or capture.tensors(f"step{n}/gradients") for n in range(step + 1)]
    before = capture.tensors(f"step{step - 1}/weights" if step else "initial")
    names = [name for name in names if all(name in file for file in files) and files[0][name].numel() >= LEAST]
    if step > STEPS or not names:
        return None
    names = names[:: -(-len(names) // TENSORS)]
    gradients = {name: [_sampled(file[name]) for file in files] for name in names}
    update = {name: _sampled(updates(capture, step)(name)) for name in names}
    weights = {name: _sampled(before[name]) for name in names}
    models = []
    for settings, direction in _directions(step):
        predicted, rest = {}, 0.0
        for name in names:
            # Learning rate and decay of a tensor are its own: groups of parameters may have others.
            terms = torch.stack([direction(gradients[name]), weights[name]], 1)
            scale = terms.norm(dim=0).clamp(min=1e-300)
            solution = torch.linalg.lstsq(terms / scale, update[name][:, None], driver="gelsd").solution[:, 0]
            predicted[name] = terms / scale @ solution
            rest = max(rest, float((update[name] - predicted[name]).norm() / update[name].norm().clamp(min=1e-300)))
        models.append(_Model(settings, rest, predicted))
    least = min(model.rest for model in models)
    return next(model for model in models if model.rest <= SAME * least)


def _directions(step: int) -> Iterator[tuple[str, "_Adam | _Momentum"]]:
    """Yield settings and the direction of the update that they give; a first step does not show betas and momentum."""
    betas = product(*BETAS) if step else [(BETAS[0][0], BETAS[1][0])]
    for (first, second), eps in product(betas, EPSILONS):
        settings = f"betas ({first}, {second}) and eps {eps:g}" if step else f"eps {eps:g}"
        yield f"Adam with {settings}", _Adam(first, second, eps)
    for momentum, nesterov in product(MOMENTA if step else MOMENTA[:1], (False, True)):
        if not nesterov or (momentum and step):
            settings = f" with momentum {momentum}" if step else ""
            yield f"SGD{settings}" + ", Nesterov's" * nesterov, _Momentum(momentum, nesterov)


@dataclass(frozen=True)
class _Adam:
    first: float
    second: float
    eps: float

    def __call__(self, gradients: list[Tensor]) -> Tensor:
        mean = square = torch.zeros_like(gradients[0])
        for gradient in gradients:
            mean = self.first * mean + (1 - self.first) * gradient
            square = self.second * square + (1 - self.second) * gradient**2
        steps = len(gradients)
        return mean / (1 - self.first**steps) / ((square / (1 - self.second**steps)).sqrt() + self.eps)


@dataclass(frozen=True)
class _Momentum:
    momentum: float
    nesterov: bool

    def __call__(self, gradients: list[Tensor]) -> Tensor:
        total = torch.zeros_like(gradients[0])
        for gradient in gradients:
            total = self.momentum * total + gradient
        return gradients[-1] + self.momentum * total if self.nesterov else total
