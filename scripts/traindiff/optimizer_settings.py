"""Settings of an optimizer that explain an update, from the gradients of all steps up to it. Learning rate and weight
decay follow from the fit.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from traindiff.capture_files import Capture, Tensors
from traindiff.evidence import Evidence
from traindiff.pair import Pair

BETAS = ((0.9, 0.95, 0.8, 0.85, 0.5, 0.0), (0.999, 0.95, 0.98, 0.99, 0.9, 0.9999))
EPSILONS = (1e-8, 1e-6, 1e-5, 1e-7, 1e-9, 1e-10, 1e-4, 1e-3)
MOMENTA = (0.9, 0.0, 0.95, 0.99, 0.8, 0.5)
STEPS, TENSORS, VALUES, LEAST = 8, 16, 2_000, 12
"""Latest step, most tensors and values of each that are looked at, and fewest values of one that says something."""
SAME = 1.1
"""Settings that leave up to this times as much as the best ones are as good: the more usual ones count."""
DISTINCT = 3.0
"""The other training's settings must leave more than this times as much."""


@dataclass(frozen=True)
class _Update:
    """Sampled values of the tensors of an update, one after the other."""

    update: Tensor
    weights: Tensor
    """Before it."""
    gradients: list[Tensor]
    """Of each step up to it."""


@dataclass(frozen=True)
class _Model:
    """What an optimizer with some settings explains."""

    settings: str
    predicted: Tensor
    residual: float
    """Largest part of a tensor's update that it leaves."""


def look_at_settings(pair: Pair, step: int, names: list[str], found: Evidence) -> bool:
    """Note if both updates are those of the same optimizer with other settings, and their difference, too."""
    files = _gradients(pair, step)
    known = all(capture.has_update(step) for capture in pair.captures)
    names = [
        name for name in names if all(name in file and file[name].numel() >= LEAST for each in files for file in each)
    ]
    if step > STEPS or not names or not known:
        return False
    names = names[:: -(-len(names) // TENSORS)]
    sizes = torch.tensor([len(_sampled(files[0][0][name])) for name in names])
    place = torch.arange(len(names)).repeat_interleave(sizes)
    own, other = (_read(capture, step, names, each) for capture, each in zip(pair.captures, files, strict=True))
    models, others = _models(own, place), _models(other, place)
    best, usual = _best(models), _best(others)
    residual = max(best.residual, usual.residual)
    # Each must need its own settings.
    distinct = all(
        model.residual > DISTINCT * least.residual
        for each, least, name in ((models, best, usual.settings), (others, usual, best.settings))
        for model in each
        if model.settings == name
    )
    if not residual < pair.fits or best.settings == usual.settings or not distinct:
        if _is_unclipped(pair, step, names, place):
            found.note("pattern", "unclipped")
            found.say("The update is that of the same optimizer with the gradients before clipping.")
            return True
        found.exclude("other betas, eps or momentum", residual, "the update")
        return False
    off = own.update - other.update
    residual = float((off - (best.predicted - usual.predicted)).norm() / off.norm())
    if not residual < max(pair.fits, 0.1):
        found.exclude("other betas, eps or momentum", residual)
        return False
    found.note("pattern", "settings")
    found.say(
        f"The update is that of {best.settings}; the reference's is that of {usual.settings} "
        f"(this leaves {residual:.1g} of the difference)."
    )
    return True


def _is_unclipped(pair: Pair, step: int, names: list[str], place: Tensor) -> bool:
    """Return whether gradients before clipping explain an update, but not the same ones clipped as in the reference,
    whose clipped ones explain its own: with the same settings.
    """
    raw, whole, clipped = (
        [capture.tensors(f"step{n}/{kind}") for n in range(step + 1)]
        for capture, kind in ((pair.actual, "gradients"), (pair.reference, "gradients"), (pair.reference, "clipped"))
    )
    if not all(raw) or not all(whole) or not all(clipped) or pair.actual.tensors(f"step{step}/clipped"):
        return False
    own, other, usually = (
        _read(capture, step, names, each)
        for capture, each in ((pair.actual, raw), (pair.reference, whole), (pair.reference, clipped))
    )
    parts = [
        float(after.norm() / before.norm()) for after, before in zip(usually.gradients, other.gradients, strict=True)
    ]
    usual = _best(_models(usually, place))
    before, after = (
        next(model for model in _models(each, place) if model.settings == usual.settings)
        for each in (
            own,
            replace(own, gradients=[part * each for part, each in zip(parts, own.gradients, strict=True)]),
        )
    )
    return max(usual.residual, before.residual) < pair.fits < after.residual


def _gradients(pair: Pair, step: int) -> list[list[Tensors]]:
    """Return each capture's gradients of the steps up to one: as the optimizer gets them, if both have these."""
    steps = range(step + 1)
    has_clipped = all(capture.tensors(f"step{n}/clipped") for capture in pair.captures for n in steps)
    kind = "clipped" if has_clipped else "gradients"
    return [[capture.tensors(f"step{n}/{kind}") for n in steps] for capture in pair.captures]


def _sampled(value: Tensor) -> Tensor:
    flat = value.double().flatten()
    return flat[:: -(-len(flat) // VALUES)]


def _read(capture: Capture, step: int, names: list[str], gradients: list[Tensors]) -> _Update:
    before, update = capture.tensors(f"step{step - 1}/weights" if step else "initial"), capture.updates(step)

    def together(read: Callable[[str], Tensor]) -> Tensor:
        return torch.cat([_sampled(read(name)) for name in names])

    return _Update(together(update), together(before.__getitem__), [together(file.__getitem__) for file in gradients])


def _models(given: _Update, place: Tensor) -> list[_Model]:
    """Return what each of the settings explains of an update; ``place``: the tensor of each value."""

    def total(value: Tensor, other: Tensor) -> Tensor:
        return value.new_zeros(int(place[-1]) + 1).index_add(0, place, value * other)

    update, weights = given.update, given.weights
    uu, ww, uw = total(update, update), total(weights, weights), total(update, weights)
    models = []
    for settings, direction_of in _directions(len(given.gradients) - 1):
        # Learning rate and decay of a tensor are its own: groups of parameters may have others.
        direction = direction_of(given.gradients)
        dd, dw, ud = total(direction, direction), total(direction, weights), total(update, direction)
        det = dd * ww - dw**2
        both = det > 1e-9 * dd * ww
        rate = torch.where(both, (ud * ww - uw * dw) / det, ud / dd)
        decay = torch.where(both, (uw * dd - ud * dw) / det, 0.0)
        predicted = rate[place] * direction + decay[place] * weights
        residual = (total(update - predicted, update - predicted) / uu).sqrt().max()
        models.append(_Model(settings, predicted, float(residual) if bool(torch.isfinite(residual)) else math.inf))
    return models


def _best(models: list[_Model]) -> _Model:
    least = min(model.residual for model in models)
    return next(model for model in models if model.residual <= SAME * least)


def _directions(step: int) -> Iterator[tuple[str, "_Adam | _Momentum"]]:
    """Yield settings and the direction of the update that they give; a first step does not show betas and momentum."""
    betas = product(*BETAS) if step else [(BETAS[0][0], BETAS[1][0])]
    for (first, second), eps in product(betas, EPSILONS):
        settings = f"betas ({first}, {second}) and eps {eps:g}" if step else f"eps {eps:g}"
        yield f"Adam with {settings}", _Adam(first, second, eps)
    for eps in EPSILONS:
        yield f"Adam without bias correction, with eps {eps:g}", _Adam(BETAS[0][0], BETAS[1][0], eps, corrected=False)
    for momentum, nesterov in product(MOMENTA if step else MOMENTA[:1], (False, True)):
        if not nesterov or (momentum and step):
            settings = f" with momentum {momentum}" if step else ""
            yield f"SGD{settings}" + ", Nesterov's" * nesterov, _Momentum(momentum, nesterov)


@dataclass(frozen=True)
class _Adam:
    first: float
    second: float
    eps: float
    corrected: bool = True

    def __call__(self, gradients: list[Tensor]) -> Tensor:
        mean = square = torch.zeros_like(gradients[0])
        for gradient in gradients:
            mean = self.first * mean + (1 - self.first) * gradient
            square = self.second * square + (1 - self.second) * gradient**2
        if not self.corrected:
            return mean / (square.sqrt() + self.eps)
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
