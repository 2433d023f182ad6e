"""Causes as formulas: under each, the other training's tensors are recomputed from the reference's. A cause is named if
its formula holds (see fit.py); what only fits a place is no cause.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from traindiff.fit import Fit, Read, View, listed, number
from traindiff.pair import Pair

SMALLEST_SCALE = 2**8
"""From this power of two on a factor may be a loss scale."""
COEFFICIENTS = {"betas", "momentum", "dampening", "alpha"}
"""Settings of moments."""
CHECKS = {
    "factor": "What divides or multiplies the loss and the gradients: ranks (a sum in place of a mean), micro-batches, "
    "targets, a loss scale that is not taken out again, a clip by the trainer's own code, or with another limit; of "
    "weights, how they are drawn and loaded.",
    "factor of some": "What scales these gradients alone: a reduction, a hook, a divisor or a clip of their own.",
    "no gradient": "Parameters that are frozen, detached, or cleared before the step.",
    "zero": "What sets these tensors, or does not.",
    "previous gradient": "zero_grad() after each step, and what is kept between steps.",
    "not reduced": "Whether gradients are reduced over the ranks, after the last micro-batch (no_sync, "
    "require_backward_grad_sync, set_requires_gradient_sync).",
    "lost blocks": "Whether gradients are cleared between micro-batches, those of all ranks are averaged, and none "
    "has a loss of 0.",
    "means of blocks": "What each rank or micro-batch divides its loss by: its own number, where numbers differ.",
    "weights of blocks": "What multiplies or clips the loss, or the gradient, of these ranks or micro-batches.",
    "clip": "The limit of the clipping, its type of norm, and where the trainer, or the engine's own configuration, "
    "sets them.",
    "no clipping": "Whether gradients are clipped, and the optimizer gets them.",
    "norm of some": "Over which shards and ranks the norm for clipping is taken.",
    "norm with a factor": "What the norm of the gradients is multiplied or divided by.",
    "coefficients of moments": "The optimizer's betas, momentum and dampening.",
    "factor of updates": "The learning rate (its schedule, warm-up, a scheduler that steps more than once) and decay "
    "that the optimizer really has; clipping; whether it is the same optimizer; which parameters its groups have.",
    "no update": "Whether the optimizer has these parameters and takes a step, and with a learning rate above 0.",
    "other samples": "The order, the epoch's seed, the sampler (shuffling, its rank and number of ranks), prefetching; "
    "how both prepare a sample (tokens, padding, truncation, augmentation).",
    "bias": "A bias that each rank adds to its partial sum (add it after the reduction), or none.",
    "restored state": "What a checkpoint has, and what is loaded from it.",
}
"""Causes, and what to check of each."""
SHOWN = {
    "factor": "a factor of",
    "factor of some": "a factor of",
    "factor of updates": "updates times",
}
"""Causes whose names go on with what they say of a case."""


@dataclass(frozen=True)
class Formula:
    """A cause whose formula holds."""

    cause: str
    text: str
    """What it says of this case, in a few words: it follows the cause."""
    fit: Fit = field(default_factory=Fit)
    table: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        if self.cause in SHOWN:
            return f"{SHOWN[self.cause]} {self.text}"
        return f"{self.cause}: {self.text}" if self.text else self.cause


def explain(view: View) -> list[Formula]:
    """Return the formulas that hold with the fewest unknowns; several hold equally."""
    also = {"gradient": _previous, "optimizer state": _moments}.get(view.stage.kind)
    return fewest([*_factor(view), *(also(view) if also else ())])


def fewest(found: Iterable[Formula]) -> list[Formula]:
    """Return those with the fewest unknowns, once each."""
    named = {each.name: each for each in found}
    least = min((len(each.fit.solved) for each in named.values()), default=0)
    return [each for each in named.values() if len(each.fit.solved) == least]


# Numbers


def known(pair: Pair, step: int) -> dict[str, int]:
    """Return the numbers above 1 that are known of the other training: ranks along axes, micro-batches."""
    about, shown = pair.actual.about, pair.actual.shown(step)
    mesh = about.get("mesh", {})
    found = {f"the number of ranks along {axis}": degree for axis, degree in mesh.items()}
    world = len(about.get("ranks", [])) or shown.get("world_size", 1)
    found["the number of ranks"] = world
    found["the number of micro-batches"] = about.get("accumulation") or shown.get("micro_batches") or 1
    found["the pipeline's number of micro-batches"] = about.get("chunks") or 1
    return {name: value for name, value in found.items() if value > 1}


def meaning(pair: Pair, step: int, times: float, near: float) -> str:
    """Return which known numbers a factor is: " (as is the number of ranks, or ...)"; "" if it is none."""
    given = {name: float(value) for name, value in known(pair, step).items()}
    pairs = combinations(given.items(), 2)
    composed = {f"({name} times {other})": value * more for (name, value), (other, more) in pairs}
    for numbers in (given, composed):
        found = [name.strip("()") for name, value in numbers.items() if abs(times - value) <= near * value]
        found += [f"1 / {name}" for name, value in numbers.items() if abs(times - 1 / value) <= near / value]
        if found:
            return f" (as is {', and '.join(found)})"
    scale = round(math.log2(times)) if times > 0 else 0
    if 2 ** abs(scale) >= SMALLEST_SCALE and abs(times / 2.0**scale - 1) <= near:
        return f", 2^{scale}, as of a loss scale"
    return ""


# Gradients, and all tensors


def _factor(view: View) -> Iterator[Formula]:
    """x' = c x of all tensors that differ."""
    kind, names = view.stage.kind, view.names
    if all(not bool(view.actual(name).any()) for name in names):
        cause = {"update": "no update", "gradient": "no gradient", "clipped gradient": "no gradient"}.get(kind, "zero")
        yield Formula(cause, "" if view.is_whole else listed(names), Fit(left=0.0))
        return
    if kind == "optimizer state" and view.gradients:
        return  # the gradients' factors say more
    if not (fit := view.solve(names, [view.expected])):
        return
    times, some = 1 + fit.solved[0], "" if view.is_whole else f" ({listed(names)})"
    text = number(times, view.near)
    if kind == "update":
        yield Formula("factor of updates", text + some, fit)
    elif kind in ("gradient", "clipped gradient") and not some:
        yield of_gradient(view, times, fit)
    else:
        means = meaning(view.pair, view.step, times, view.near)
        yield Formula("factor of some" if some else "factor", text + means + some, fit)


def norm_of(view: View, kind: str) -> float:
    """Return the norm of the reference's gradients of a step."""
    file = view.pair.reference.tensors(f"step{view.step}/{kind}")
    return math.hypot(*(float(file[name].double().norm()) for name in file.names))


def of_gradient(view: View, times: float, fit: Fit) -> Formula:
    """c times the gradients of the reference; after the gradients, those that its optimizer gets."""
    is_first, exact = view.stage.kind == "gradient", replace(fit, solved=[])
    clipped = norm_of(view, "clipped") or norm_of(view, "gradients")
    whole = norm_of(view, "gradients") or clipped
    own, clips = times * (whole if is_first else clipped), clipped < whole * (1 - view.near)
    limit = float(view.pair.actual.shown(view.step).get("max_grad_norm") or math.inf)

    def clips_to(norm: float) -> bool:
        """Whether this training's norm is that of a clipped norm, to which PyTorch adds 1e-6."""
        return own < whole and any(view.same(own, norm * (1 + each / whole)) for each in (-1e-6, 0.0, 1e-6))

    if is_first and clips and clips_to(clipped):
        return Formula("clip", f"to a norm of {own:.6g} as the reference, by its own code", exact)
    if not is_first and clips and view.same(own, whole, 10):
        return Formula("no clipping", "", exact)
    if not is_first and clips_to(limit):
        return Formula("clip", f"to a norm of {limit:.6g}", exact)
    means = meaning(view.pair, view.step, times, max(view.near, 1e-5))
    text = number(times, view.near) + (means or f", to a norm of {own:.6g}" * (0 < own < whole))
    return Formula("factor", text, fit)


def _previous(view: View) -> Iterator[Formula]:
    """g' = g + a g of the step before, as it was left: clipped, or not."""
    for kind in ("clipped", "gradients"):
        before = view.pair.reference.tensors(f"step{view.step - 1}/{kind}")
        if not before or any(name not in before for name in view.names):
            continue
        if fit := view.solve(view.names, [before.__getitem__]):
            text = f"{number(fit.solved[0], view.near)} times that of step {view.step - 1} is added"
            yield Formula("previous gradient", text, fit)
            return


# The optimizer


def _key(name: str) -> str:
    return name.rpartition("//")[2]


def _keys(names: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(map(_key, names))]


def _of_moments(view: View, key: str, names: list[str], of: Read) -> tuple[Fit, tuple[float, float]] | None:
    """Return the fit and (a, b) of a kind of moments: m = a m before + b g (of squares: of g^2)."""
    gradient = view.gradients
    before = view.pair.reference.tensors(f"step{view.step - 1}/optimizer")
    if gradient is None:
        return None
    has_before = all(name in before for name in names)
    terms: list[Read] = [lambda name: before[name].double()] * has_before
    terms.append(lambda name: gradient(name) ** (2 if key.endswith("_sq") else 1))
    if not (fit := view.solve(names, terms, of)):
        return None
    a, b = [0.0] * (not has_before) + fit.solved
    return fit, (a, b)


def _moments(view: View) -> Iterator[Formula]:
    """m' = a' m before + b' g: other coefficients, or a gradient with a factor."""
    fits, own, usual = [], {}, {}
    for key in _keys(view.names):
        names = [name for name in view.names if _key(name) == key]
        if not (found := _of_moments(view, key, names, view.actual)):
            return
        fits.append(found[0])
        own[key] = found[1]
    every = [row.name for row in view.stage.rows]
    for key in _keys(every):
        if found := _of_moments(view, key, [name for name in every if _key(name) == key], view.expected):
            usual[key] = found[1]
    solved = [each for one in fits for each in one.solved]
    fit = Fit(solved, max(each.left for each in fits))
    if not usual.keys() >= own.keys():  # the reference's go on from before the first step
        return
    # Moments that do not differ are those of a factor of 1.
    times = [abs(b / usual[key][1]) ** (0.5 if key.endswith("_sq") else 1) for key, (_, b) in own.items()]
    times += [1.0] * (len(usual) - len(own))
    same = all(b / usual[key][1] >= 0 and abs(a - usual[key][0]) <= 10 * view.near for key, (a, b) in own.items())
    by_factor = (
        same
        and all(view.same(each, times[0], 3) for each in times)
        and not any(key in COEFFICIENTS for key, _ in different_settings(view))
    )
    if by_factor:
        yield of_gradient(view, times[0], replace(fit, solved=times[:1]))
    if not (by_factor and len(usual) > 1):
        text = "; ".join(
            f"{key}: {', not '.join(f'{a:.6g} and {b:.6g}' for a, b in (own[key], usual[key]))}" for key in own
        )
        yield Formula("coefficients of moments", text, fit)


def settings(view: View, side: int) -> dict[str, dict[str, Any]]:
    """Return what an optimizer says of each parameter."""
    groups = view.pair.captures[side].shown(view.step).get("groups") or []
    return {
        name: {key: value for key, value in group.items() if key != "params"}
        for group in groups
        for name in group["params"]
    }


def different_settings(view: View) -> dict[tuple[str, str], list[str]]:
    """Return (setting, "this value, not that one") of what the optimizers say: the parameters of which they do."""
    own, usual = (settings(view, side) for side in (0, 1))
    found: dict[tuple[str, str], list[str]] = {}
    for name in (each for each in usual if each in own):
        for key in sorted(own[name].keys() & usual[name].keys()):
            value, other = own[name][key], usual[name][key]
            if value != other:
                found.setdefault((key, f"{value}, not {other}"), []).append(name)
    return found
