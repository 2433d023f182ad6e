"""How gradients, states and updates differ: a pattern that explains their difference from the reference, or none."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from traindiff import patterns
from traindiff.evidence import Evidence
from traindiff.factors import look_at_factors, name_factor
from traindiff.matrix_updates import look_at_shards
from traindiff.optimizer_settings import look_at_settings
from traindiff.pair import EPSILONS, FILES, LIMITS, Pair, Stage
from traindiff.patterns import Read
from traindiff.sample_weights import look_at_samples

ISLAND = 1e-5
"""Largest part of a tensor in float64 that the rounding of float32 inside makes up."""


@dataclass
class Differing:
    """The tensors of a stage that differ."""

    pair: Pair
    stage: Stage
    actual: Read
    expected: Read

    @cached_property
    def names(self) -> list[str]:
        return [row.name for row in self.stage.wrong]

    def off(self, name: str) -> Tensor:
        return self.actual(name).double() - self.expected(name).double()

    def noise(self, name: str) -> float:
        """Return the norm of the rounding: an update is the difference of weights, which are larger."""
        if self.stage.kind != "update":
            return 0.0
        file = f"step{self.stage.step}/weights"
        return self.pair.limit(EPSILONS, file) * float(self.pair.reference.tensors(file)[name].double().norm())


def look_at_tensors(pair: Pair, stage: Stage, found: Evidence) -> None:
    """Note what explains the difference of the tensors of a stage."""
    it = Differing(pair, stage, *_readers(pair, stage))
    found.note("names", "all" if len(it.names) == len(stage.rows) else "one" if len(it.names) == 1 else "some")
    _given_gradients(it, found)
    _constant(it, found)
    if any(row.note for row in stage.wrong):
        _missing(it, found)
    elif any(not math.isfinite(row.difference) for row in stage.wrong):
        found.note("pattern", "nan")
        found.say(patterns.not_finite(it.names, it.actual, it.expected))
    elif not any(bool(it.actual(name).any()) for name in it.names):
        found.note("pattern", "zero")
        found.say("The affected tensors are zero.")
    else:
        next((look for look in _LOOKS if look(it, found)), None)
    if stage.kind == "clipped gradient":
        own = pair.actual.tensors(f"step{stage.step}/gradients")
        if all(name in own and _is_same(it.actual(name), own[name], pair.fits) for name in it.names[:3]):
            found.note("pattern", "unclipped")
            found.say("These are the gradients before clipping.")


def _readers(pair: Pair, stage: Stage) -> tuple[Read, Read]:
    if stage.kind == "update":
        return pair.actual.updates(stage.step), pair.reference.updates(stage.step)
    file = "initial" if stage.kind == "initial weights" else f"step{stage.step}/{FILES.get(stage.kind, 'weights')}"
    return pair.gradients(pair.actual, file), pair.gradients(pair.reference, file)


def _given_gradients(it: Differing, found: Evidence) -> None:
    """Note whether the tensors have gradients, and say which have one only in one of the trainings."""
    files = [capture.tensors(f"step{it.stage.step}/gradients") for capture in it.pair.captures]
    if it.stage.kind == "update":
        has = [name in file and bool(file[name].any()) for file in files for name in it.names]
        found.note("tensors", "unknown" if not all(files) else "with gradients" if any(has) else "without gradients")
        if all(files) and not any(has):
            found.say("None of these tensors has a gradient: the loss does not use them, or they are no parameters.")
    if it.stage.kind in ("gradient", "clipped gradient"):
        for capture in it.pair.captures:
            file = capture.tensors(f"step{it.stage.step}/{FILES[it.stage.kind]}")
            if lacks := [name for name in it.names if name not in file]:
                listed = ", ".join(lacks[:3]) + ", ..." * (len(lacks) > 3)
                found.say(f"Without a gradient in `{capture.folder}`, where it counts as 0: {listed}.")


def _constant(it: Differing, found: Evidence) -> None:
    """Note whether the reference leaves what an optimizer does not update as it was."""
    before = it.pair.reference.tensors("initial")
    if it.stage.kind != "buffers" or not all(name in before for name in it.names):
        return
    if all(torch.equal(it.expected(name).double(), before[name].double()) for name in it.names):
        found.note("tensors", "constant")
        found.say("In the reference these tensors keep their initial values.")


def _missing(it: Differing, found: Evidence) -> None:
    found.note("pattern", "missing")
    names = it.pair.reference.about.get("parameters", [])
    if it.stage.kind == "optimizer state" and names and it.pair.actual.has_update(it.stage.step):
        update = it.pair.actual.updates(it.stage.step)
        found.note("update", "none" if not any(bool(update(name).any()) for name in names) else "some")
    found.say("Some tensors are missing in one of the two trainings.")


def _is_same(value: Tensor, other: Tensor, fits: float) -> bool:
    fit = patterns.factor(value, other)
    return abs(fit.coefficients[0] - 1) < fits and fit.residual < fits


def _factors(it: Differing, found: Evidence) -> bool:
    fits = {name: patterns.factor(it.actual(name), it.expected(name)) for name in it.names}
    if not all(fit.is_factor(it.pair.fits) for fit in fits.values()):
        found.exclude("a factor", _most(fits))
        return False
    later = [step for step in it.pair.steps if step > it.stage.step][:2]
    if it.stage.kind == "update" and any(look_at_settings(it.pair, step, it.names, found) for step in later):
        return True
    look_at_factors(it.pair, it.stage, {name: fit.coefficients[0] for name, fit in fits.items()}, found, _most(fits))
    return True


def _most(fits: dict[str, patterns.Fit]) -> float:
    return max(fit.left for fit in fits.values())


def _rounded(it: Differing, found: Evidence) -> bool:
    dtypes = {patterns.rounded_to(it.actual(name), it.expected(name)) for name in it.names}
    back = {patterns.rounded_to(it.expected(name), it.actual(name)) for name in it.names}
    if None in dtypes and None in back:
        return False
    dtype, whose = (dtypes, "this training's") if None not in dtypes else (back, "the reference's")
    found.note("pattern", "rounded")
    found.say(f"Of the affected tensors, {whose} are the other's, rounded to {' or '.join(sorted(map(str, dtype)))}.")
    return True


def _another_step(it: Differing, found: Evidence) -> bool:
    """Look for the tensors in other steps of the reference: those of an update's weights."""
    kind = "weights" if it.stage.kind == "update" else FILES.get(it.stage.kind)
    own, expected = (capture.tensors(f"step{it.stage.step}/{kind}") for capture in it.pair.captures)
    for other in (each for each in it.pair.reference.steps if each != it.stage.step and kind):
        file = it.pair.reference.tensors(f"step{other}/{kind}")
        if not all(name in each for name in it.names for each in (file, own, expected)):
            continue
        differences = {
            name: _relative_difference(own[name], file[name]) / (_relative_difference(own[name], expected[name]) or 1.0)
            for name in it.names
        }
        if max(differences.values()) < it.pair.fits:
            found.note("pattern", "another step")
            found.say(f"The {kind} are those of the reference's step {other} ({_left(max(differences.values()))}).")
            return True
    return False


def _relative_difference(value: Tensor, other: Tensor) -> float:
    """Return how far tensors are apart, relative to the second one."""
    if value.shape != other.shape:
        return math.inf
    return float((value.double() - other.double()).norm() / (other.double().norm() or 1.0))


def _float32(it: Differing, found: Evidence) -> bool:
    """Recognize the rounding of float32 in tensors of float64, to which nothing must be fitted."""
    if (
        it.stage.kind not in FILES
        or it.pair.limit(LIMITS, f"step{it.stage.step}/{FILES[it.stage.kind]}") > LIMITS["F64"]
    ):
        return False
    difference = max(_relative_difference(it.actual(name), it.expected(name)) for name in it.names)
    if difference > ISLAND:
        return False
    found.note("pattern", "float32")
    found.say(f"The difference is {difference:.1g} of a tensor, as the rounding of float32 somewhere inside makes it.")
    return True


def _rounded_gradients(it: Differing, found: Evidence) -> bool:
    """Look for gradients that only one training rounds, too little to be a difference of their own."""
    if it.stage.kind not in ("optimizer state", "update"):
        return False
    files = [capture.tensors(f"step{it.stage.step}/gradients") for capture in it.pair.captures]
    names = [*dict.fromkeys(name.split("//")[0] for name in it.names)]
    if not all(name in file for name in names for file in files):
        return False
    dtypes = {patterns.rounded_to(files[0][name], files[1][name]) for name in names}
    if None in dtypes:
        return False
    found.note("pattern", "rounded")
    difference = max(_relative_difference(files[0][name], files[1][name]) for name in names)
    found.say(
        f"The gradients of these parameters are the reference's, rounded to {' or '.join(sorted(map(str, dtypes)))}: "
        f"they are {difference:.1g} of a tensor apart."
    )
    return True


def _samples(it: Differing, found: Evidence) -> bool:
    return it.stage.kind == "gradient" and look_at_samples(it.pair, it.stage.step, it.names, found)


def _stale(it: Differing, found: Evidence) -> bool:
    before = it.pair.reference.tensors(f"step{it.stage.step - 1}/gradients")
    if it.stage.kind != "gradient" or any(name not in before for name in it.names):
        return False
    return _holds(it, "the gradient of the previous step", "stale", before.__getitem__, it.names, found)


def _decay(it: Differing, found: Evidence) -> bool:
    if it.stage.kind not in ("optimizer state", "update", "clipped gradient", "gradient"):
        return False
    weights = it.pair.reference.tensors(f"step{it.stage.step - 1}/weights" if it.stage.step else "initial")
    # Of Adam's state the first moment shows what is added to the gradient.
    names = [
        name
        for name in it.names
        if not name.endswith("_sq")
        and (parameter := name.split("//")[0]) in weights
        and weights[parameter].shape == it.expected(name).shape
    ]

    def weight(name: str) -> Tensor:
        return weights[name.split("//")[0]]

    fits = {name: patterns.multiple([name], it.off, weight, it.noise) for name in names}
    own = {name: fit.coefficients[0] for name, fit in fits.items() if fit.residual < it.pair.fits}
    if len(own) == len(names) > 1 and max(own.values()) - min(own.values()) > it.pair.near * max(
        map(abs, own.values())
    ):
        found.note("pattern", "decay")
        listed = ", ".join(f"{name} {times:.4g}" for name, times in [*own.items()][:4])
        found.say(f"The difference of each tensor is a multiple of its weights, not the same one: {listed}.")
        return True
    return _holds(it, "the weights", "decay", weight, names, found)


def _holds(it: Differing, what: str, pattern: str, term: Read, names: list[str], found: Evidence) -> bool:
    """Note a pattern if the difference is a multiple of something else, or exclude it."""
    if not names or not any(bool(term(name).any()) for name in names):
        return False
    fit = patterns.multiple(names, it.off, term, it.noise)
    if not fit.residual < it.pair.fits:
        found.exclude(f"a multiple of {what}", fit.residual)
        return False
    found.note("pattern", pattern)
    found.say(f"The difference is {fit.coefficients[0]:.4g} times {what} ({_left(fit.residual)}).")
    return True


def _left(residual: float) -> str:
    return f"this leaves {residual:.1g} of it"


def _state(it: Differing, found: Evidence) -> bool:
    """Look for other coefficients of moments: the difference is a sum of the previous state and of the gradient."""
    if it.stage.kind != "optimizer state":
        return False
    step, reference = it.stage.step, it.pair.reference
    before = reference.tensors(f"step{step - 1}/optimizer")
    gradients = reference.tensors(f"step{step}/clipped") or reference.tensors(f"step{step}/gradients")
    residuals = []
    for key in {name.rpartition("//")[2] for name in it.names}:
        names = [name for name in it.names if name.endswith(f"//{key}") and name.split("//")[0] in gradients]
        power = 2 if key.endswith("_sq") else 1

        def gradient(name: str, power: int = power) -> Tensor:
            return gradients[name.split("//")[0]].double() ** power

        terms: list[Read] = [gradient, *([before.__getitem__] if all(name in before for name in names) else [])]
        residuals.append(patterns.combination(names, it.off, terms).residual if names else math.inf)
    if not max(residuals) < it.pair.fits:
        found.exclude("other coefficients of the optimizer's moments", max(residuals))
        return False
    found.note("pattern", "moments")
    found.say(f"The state has its moments with other coefficients ({_left(max(residuals))}).")
    return True


def _settings(it: Differing, found: Evidence) -> bool:
    return it.stage.kind == "update" and look_at_settings(it.pair, it.stage.step, it.names, found)


def _shards(it: Differing, found: Evidence) -> bool:
    return it.stage.kind == "update" and look_at_shards(it.pair, it.stage.step, it.names, found)


def _transposed(it: Differing, found: Evidence) -> bool:
    for name in it.names:
        value, other = it.actual(name).double(), it.expected(name).double()
        limit = next(row.limit for row in it.stage.rows if row.name == name) * float(other.abs().max())
        if value.dim() != 2 or value.shape != value.T.shape or not bool(((value.T - other).abs() <= limit).all()):
            return False
    found.note("pattern", "transposed")
    found.say("The affected tensors are the reference's, transposed.")
    return True


def _rows(it: Differing, found: Evidence) -> bool:
    """Say what there is to say of the first tensor that differs, though nothing explains it."""
    name = it.names[0]
    row = next(row for row in it.stage.rows if row.name == name)
    value, other = it.actual(name).double(), it.expected(name).double()
    limit = row.limit * float(other.abs().max())
    for dim, indices in patterns.spans(value, other, limit)[:1]:
        found.note("pattern", "rows")
        text, places = patterns.ranges(indices), torch.tensor(indices)
        fit = patterns.factor(value.index_select(dim, places), other.index_select(dim, places))
        if fit.is_factor(it.pair.fits):
            name_factor(it.pair, fit.coefficients[0], found, f"{name}[{text}] along dimension {dim}")
        else:
            found.say(f"{name} differs only at indices {text} (of {value.shape[dim]}) along dimension {dim}.")
        return True
    if patterns.is_permuted(value, other, limit):
        found.note("pattern", "permuted")
        found.say(f"{name} has the reference's rows in a different order.")
        return True
    found.note("pattern", "none")
    if not bool(other.any()):
        found.say(f"{name} is zero in the reference.")
        return True
    fit = patterns.factor(value, other)
    found.say(
        f"Nothing that was tried explains the difference; the best factor of {name}, {fit.coefficients[0]:.4g}, leaves "
        f"{fit.left:.1g} of it."
    )
    return True


_LOOKS: tuple[Callable[[Differing, Evidence], bool], ...] = (
    _factors,
    _another_step,
    _transposed,
    _rounded,
    _samples,
    _stale,
    _decay,
    _state,
    _settings,
    _shards,
    _rounded_gradients,
    _float32,
    _rows,
)
"""In this order; the first that explains the difference ends the search."""
