"""Causes as formulas: under each, the other training's tensors are recomputed from the reference's. A cause is named if
its formula holds (see fit.py); what only fits a place is no cause.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from traindiff import replay
from traindiff.fit import PART, Fit, Read, View, coefficient, joined, listed, number
from traindiff.pair import COARSE, NUMBERS, Pair

SMALLEST_SCALE = 2**8
"""From this power of two on a factor may be a loss scale."""
LEAST = 3
"""Fewest values of a tensor that has an unknown of its own."""
CAUSES_OF_SETTINGS = {"lr": "rate", "eps": "eps", "weight_decay": "decay", "decoupled_weight_decay": "decay"}
CAUSES_OF_SETTINGS["count"] = "the optimizer's count of steps"
"""Causes of settings; of others it is that the settings differ."""
COEFFICIENTS = {"beta1", "beta2", "momentum", "dampening", "alpha"}
"""Settings of moments."""
NEAREST = 0.25
"""Least part of the values of a rounded tensor that are the nearest; a sum of rounded parts is so less often."""
NEAR_NORMS = 1e-5
"""How near two norms are that are the same: many parts of a model are looked at."""
DECOUPLED = {True: "of the update (AdamW)", False: "of the gradient (Adam)"}
"""What decoupled_weight_decay says."""
STATES = ("amsgrad", "centered", "momentum")
"""Settings by which an optimizer has another tensor of each parameter."""

CHECKS = {
    "factor": "What divides or multiplies the loss and the gradients: ranks (a sum in place of a mean), micro-batches, "
    "targets, a loss scale that is not taken out again, a clip by the trainer's own code, or with another limit; of "
    "weights, how they are drawn and loaded.",
    "factor of some": "What scales these gradients alone: a reduction, a hook, a divisor or a clip of their own.",
    "no gradient": "Parameters that are frozen, detached, or cleared before the step.",
    "zero": "What sets these tensors, or does not.",
    "previous gradient": "zero_grad() after each step, and what is kept between steps.",
    "another step": "Whether both number their steps alike (from 0), and what is read, kept or loaded of another step.",
    "decay": "Weight decay: which parameters have it, how much, and whether it is added to the gradient (Adam) or "
    "to the update (AdamW).",
    "cast": "The dtype in which gradients are reduced, and in which weights are kept, loaded or written.",
    "not reduced": "Whether gradients are reduced over the ranks, after the last micro-batch (no_sync, "
    "require_backward_grad_sync, set_requires_gradient_sync).",
    "lost blocks": "Whether gradients are cleared between micro-batches, those of all ranks are averaged, and none "
    "has a loss of 0.",
    "means of blocks": "What each rank or micro-batch divides its loss by: its own number, where numbers differ.",
    "weights of blocks": "What multiplies or clips the loss, or the gradient, of these ranks or micro-batches.",
    "weights of samples": "Weights of classes, targets that are ignored, rows that fill up a batch or repeat.",
    "size of each sample's part": "Weights of samples or classes, or another loss of the same outputs; what the loss "
    "of each sample is divided by.",
    "clip": "The limit of the clipping, its type of norm, and where the trainer, or the engine's own configuration, "
    "sets them.",
    "clip of each block": "Clipping after each micro-batch, or on each rank before the reduction.",
    "no clipping": "Whether gradients are clipped, and the optimizer gets them.",
    "norm of some": "Over which parameters, shards and ranks the norm for clipping is taken.",
    "norm with a factor": "What the norm of the gradients is multiplied or divided by.",
    "coefficients of moments": "The optimizer's betas, momentum and dampening.",
    "moments lost": "Whether the optimizer's state is loaded on a resume, before the first step.",
    "the optimizer's count of steps": "Whether the optimizer's step count is loaded on a resume.",
    "rate": "The learning rate and its schedule: warm-up, number of steps, a scheduler that steps more than once.",
    "factor of updates": "The learning rate and decay that the optimizer really has; whether it is the same optimizer; "
    "which parameters are in which of its groups.",
    "eps": "The optimizer's eps.",
    "settings": "The optimizer's arguments.",
    "no update": "Whether the optimizer takes a step, and with a learning rate above 0.",
    "in no optimizer that took a step": "The parameters that the optimizers were made with, and whether each takes its "
    "step.",
    "other samples": "The order, the epoch's seed, the sampler (shuffling, its rank and number of ranks), prefetching.",
    "other inputs": "The order and the sampler, as of other samples; and how both prepare a sample (tokens, padding, "
    "truncation, augmentation).",
    "bias": "A bias that each rank adds to its partial sum (add it after the reduction), or none.",
    "the report alone": "What the trainer reports: which rank's loss, which micro-batch's, divided by what.",
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
    equation: str
    fit: Fit = field(default_factory=Fit)
    table: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        if self.cause in SHOWN:
            return f"{SHOWN[self.cause]} {self.text}"
        return f"{self.cause}: {self.text}" if self.text else self.cause


def explain(view: View) -> list[Formula]:
    """Return the formulas that hold with the fewest unknowns; several hold equally."""
    every = _OF.get(view.stage.kind, _PLAIN)
    return fewest(each for formulas in every for each in formulas(view))


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
    world = len(about.get("ranks", [])) or (math.prod(mesh.values()) if mesh else shown.get("world_size", 1))
    found["the number of ranks"] = world
    found["the number of micro-batches"] = about.get("accumulation") or shown.get("micro_batches") or 1
    found["the pipeline's number of micro-batches"] = about.get("chunks") or 1
    return {name: value for name, value in found.items() if value > 1}


def meaning(pair: Pair, step: int, times: float, near: float) -> str:
    """Return which known numbers a factor is: " (as is the number of ranks, or ...)"; "" if it is none."""
    given = known(pair, step)
    plain = {name: float(value) for name, value in given.items()}
    pairs = combinations(plain.items(), 2)
    composed = {f"{name} times {other}": value * more for (name, value), (other, more) in pairs}
    targets = [capture.shown(step).get("targets") for capture in pair.captures]
    if targets[0] and targets[1] and targets[0] != targets[1]:
        plain["the reference's number of targets / this training's"] = targets[1] / targets[0]
    plain |= {f"1 / {name}": 1 / value for name, value in given.items()}
    composed |= {f"1 / ({name})": 1 / value for name, value in composed.items()}
    for meanings in (plain, composed):
        if names := [name for name, value in meanings.items() if abs(times - value) <= near * value]:
            return f" (as is {', and '.join(names)})"
    scale = round(math.log2(times)) if times > 0 else 0
    if 2 ** abs(scale) >= SMALLEST_SCALE and abs(times / 2.0**scale - 1) <= near:
        return f", 2^{scale}, as of a loss scale"
    return ""


# Gradients, and all tensors


def _factor(view: View) -> Iterator[Formula]:
    """x' = c x of all tensors that differ."""
    kind, names = view.stage.kind, view.names
    if all(not bool(view.actual(name).any()) for name in names):
        if fit := view.holds(names, lambda name: torch.zeros_like(view.expected(name))):
            cause = {"update": "no update", "gradient": "no gradient", "clipped gradient": "no gradient"}.get(
                kind, "zero"
            )
            text = "" if view.is_whole else listed(names)
            yield from _of_zero(view, Formula(cause, text, f"{kind} = 0", fit))
        return
    if kind == "gradient" and all(not bool(view.expected(name).any()) for name in names):
        fit = Fit([], 0.0, sum(view.expected(name).numel() for name in names), 0)
        yield Formula("no gradient", f"in the reference, of {listed(names)}", "the reference's gradient = 0", fit)
        return
    if kind == "optimizer state" and view.gradients(1):
        return  # the gradients' factors say more
    if fit := view.solve(names, [view.expected]):
        yield (_rate if kind == "update" else _scaled)(view, 1 + fit.solved[0], fit)
        return


def _of_zero(view: View, formula: Formula) -> Iterator[Formula]:
    """An update of 0: of a rate of 0, of parameters that no optimizer has, or of none of these."""
    actual = view.pair.actual
    # Of all steps: some take their optimizers' steps by turns, or number steps in another way.
    groups = [group for step in actual.steps for group in actual.shown(step).get("groups") or []]
    names = {name for group in groups for name in group["params"]}
    own, usual = (capture.shown(view.step).get("learning_rate") for capture in view.pair.captures)
    if view.stage.kind == "update" and own == 0 != usual:
        yield Formula("rate", "it is 0 in this step", formula.equation, formula.fit)
    elif view.stage.kind == "update" and names and names.isdisjoint(view.names):
        yield replace(formula, cause="in no optimizer that took a step", text=listed(view.names))
    else:
        yield formula


def _scaled(view: View, times: float, fit: Fit) -> Formula:
    """c times the reference's tensors, by what c means."""
    kind, whole = view.stage.kind, view.is_whole
    shown = f"{kind} = {coefficient(times)} x the reference's"
    if kind in ("gradient", "clipped gradient") and whole:
        return of_gradient(view, times, fit, shown)
    text = f"{number(times, view.near)}{meaning(view.pair, view.step, times, view.near)}"
    return Formula("factor" if whole else "factor of some", text + f" ({listed(view.names)})" * (not whole), shown, fit)


def norm_of(view: View, kind: str) -> float:
    """Return the norm of the reference's gradients of a step."""
    file = view.pair.reference.tensors(f"step{view.step}/{kind}")
    return math.hypot(*(float(file[name].double().norm()) for name in file.names))


def _limit(view: View) -> float:
    """Return the limit of the clipping that this training says; infinity: none."""
    return float(view.pair.actual.shown(view.step).get("max_grad_norm") or math.inf)


def _clips(view: View, norm: float, limit: float, own: float) -> bool:
    """Return whether this training's norm is that of a clipped norm, to which PyTorch adds 1e-6."""
    return own < norm and any(view.same(own, limit * norm / (norm + added)) for added in (0.0, 1e-6))


def of_gradient(view: View, times: float, fit: Fit, shown: str) -> Formula:
    """c times the gradients of the reference; after the gradients, those that its optimizer gets."""
    kind = "clipped" if view.pair.reference.tensors(f"step{view.step}/clipped") else "gradients"
    is_first = view.stage.kind == "gradient"
    norm = norm_of(view, "gradients" if is_first else kind)
    whole = (not is_first and norm_of(view, "gradients")) or norm
    own, limit, exact = times * norm, _limit(view), replace(fit, solved=[])
    clips = norm < whole * (1 - view.near)
    means = meaning(view.pair, view.step, times, max(view.near, 1e-5))
    if clips and view.same(own, whole, 10):
        return Formula("no clipping", "", f"{shown}: the gradients before clipping", exact)
    if not is_first and _clips(view, whole, limit, own):
        text = f"to a norm of {limit:.6g}" + f", {number(times)} times the reference's{means}" * clips
        return Formula("clip", text, f"{shown}, whose norm then is the limit that the training says", exact)
    if clips:
        usual = limit if math.isfinite(limit) else norm
        if part := part_of_norm(view, whole * usual / own):
            return Formula("norm of some", part, f"{shown}: it is clipped by the norm of {part}", exact)
    text = number(times, view.near) + (means or f", to a norm of {own:.6g}" * (0 < own < whole))
    return Formula("factor", text, shown, fit)


def part_of_norm(view: View, norm: float) -> str:
    """Return the parameters whose gradients have this norm, as text: one left out, one kind or module only."""
    file = view.pair.reference.tensors(f"step{view.step}/gradients")
    squares = {name: float(file[name].double().norm()) ** 2 for name in file.names}
    parts = {name: name.split(".") for name in squares}
    modules = {name.rpartition(".")[0] for name in squares} | {part for own in parts.values() for part in own[:-1]}
    matrices = {name for name in squares if len(file.shape(name)) > 1}
    sets = {"the matrices": matrices, "the vectors": {*squares} - matrices} | {name: {name} for name in squares}
    sets |= {each: {n for n in squares if n.startswith(f"{each}.") or each in parts[n]} for each in modules if each}
    sets |= {f"all parameters but {name}": {*squares} - own for name, own in sets.items()}
    whole = sum(squares.values())
    for text, own in sets.items():
        if 0 < len(own) < len(squares) and is_square(sum(squares[name] for name in own), norm**2, whole, view):
            return text
    return ""


def is_square(found: float, wanted: float, whole: float, view: View) -> bool:
    """Return whether a squared norm is another one, and explains the difference of that from the whole."""
    near = 4 * min(view.near, NEAR_NORMS)
    return abs(found - wanted) <= min(near * wanted, view.limit(PART) * abs(whole - wanted))


def _another_step(view: View) -> Iterator[Formula]:
    """x' of step t = x of step s."""
    for step in view.pair.reference.steps:
        other = View(view.pair, replace(view.stage, step=step))
        fit = view.holds(view.names, other.expected) if step != view.step else None
        if fit and fit.values >= LEAST:
            equation = f"{view.stage.kind} = the reference's of step {step}"
            yield Formula("another step", f"that of step {step}", equation, fit)
            return


def _previous(view: View) -> Iterator[Formula]:
    """g' = g + a g of the step before, as it was left: clipped, or not."""
    for kind in ("clipped", "gradients"):
        before = view.pair.reference.tensors(f"step{view.step - 1}/{kind}")
        if not before or any(name not in before for name in view.names):
            continue
        if fit := view.solve(view.names, [before.__getitem__]):
            text = f"{number(fit.solved[0], view.near)} times that of step {view.step - 1} is added"
            shown = f"gradient = the reference's + {coefficient(fit.solved[0])} x the {kind} of step {view.step - 1}"
            yield Formula("previous gradient", text, shown, fit)
            return


def _decay(view: View) -> Iterator[Formula]:
    """x' = x + k w, of all tensors that differ with one k."""
    names = view.names
    if any(name.endswith("_sq") for name in names):
        return
    if not (fit := view.solve(names, [view.before])):
        return
    kind, part = view.stage.kind, 1.0
    if kind == "optimizer state" and len(keys := _keys(names)) == 1 and (usual := moments(view).get(keys[0])):
        kind, part = "gradient in the optimizer", usual[1]  # a moment has this part of a gradient
    text = f"{number(fit.solved[0] / part)} times the weights of "
    text += "all parameters" if view.is_whole else listed(name.split("//")[0] for name in names)
    yield Formula("decay", text, f"{kind} = the reference's + k x the weights before the step", fit)


def _cast(view: View) -> Iterator[Formula]:
    """x' = x, rounded to a coarser dtype, or the other way around."""
    both = ("this training's", view.actual, view.expected), ("the reference's", view.expected, view.actual)
    for whose, one, other in both:
        dtypes = {_rounded_to(one(name), other(name)) for name in view.names}
        if None not in dtypes:
            values = sum(view.expected(name).numel() for name in view.names)
            equation = f"each of {values} values is one of this dtype, as near to the other's as rounding"
            text = f"{whose} are rounded to {' or '.join(sorted(map(str, dtypes)))}"
            yield Formula("cast", text, equation, Fit([], 0.0, values, 0))
            return


def _rounded_to(value: Tensor, expected: Tensor) -> str | None:
    """Return the dtype in which a tensor is the other one, or a sum of its rounded parts: it alone has only values of
    that dtype, more than a few, is as near as two of its roundings, and often the nearest.
    """
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        nearest = expected.to(dtype).to(value.dtype)
        has_only_these = torch.equal(value.to(dtype).to(value.dtype), value)
        if has_only_these and len(value.unique()) >= LEAST and not torch.equal(nearest, expected):
            off = float((value - expected).norm())
            is_near = off <= 2 * torch.finfo(dtype).eps * float(expected.norm())
            is_nearest = float((value == nearest).double().mean()) >= NEAREST
            return str(dtype).removeprefix("torch.") if is_near and is_nearest else None
    return None


def _lost(view: View) -> Iterator[Formula]:
    """w' = w + u, rounded to the dtype of this training's weights: it loses small updates."""
    before = view.pair.actual.before(view.step)

    def predicted(name: str) -> Tensor:
        weight = before[name]
        return (weight.double() + view.expected(name)).to(weight.dtype).double() - weight.double()

    kept = {before.dtype(name) for name in view.names}
    if kept <= COARSE and (fit := view.holds(view.names, predicted)):
        text = f"weights are kept in {listed(name for name, short in NUMBERS.items() if short in kept)}"
        yield Formula("cast", text, "update = the reference's, as these weights take it", fit)


def _ranks(view: View) -> Iterator[Formula]:
    """The mean, or the sum, of gradients that ranks did not reduce is the reference's."""
    files = [*view.pair.actual.unreduced(view.step).values()]
    names = [name for name in view.names if all(name in file for file in files)]
    if len(files) < 2 or names != view.names:
        return

    def total(name: str) -> Tensor:
        return torch.stack([file[name].double() for file in files]).sum(0)

    if fit := view.solve(names, [total], of=view.expected):
        what = "mean" if view.same(fit.solved[0], 1 / len(files)) else f"sum, times {number(fit.solved[0])},"
        text = f"each rank has its own gradient; their {what} is the reference's"
        shown = f"the {what} of the {len(files)} ranks' gradients = the reference's; each rank keeps its own"
        yield Formula("not reduced", text, shown, Fit([], fit.left, fit.values, fit.tensors))


# The optimizer


def moments(view: View) -> dict[str, tuple[float, float, float]]:
    """Return (a, b, d) of each kind of the reference's moments: m = a m before + b g + d w (of squares: of g^2)."""
    found = {}
    for key in _keys(row.name for row in view.stage.rows):
        names = [row.name for row in view.stage.rows if _key(row.name) == key]
        if fit := _of_moments(view, key, names, view.expected):
            found[key] = fit[1]
    return found


def is_square_of_gradients(key: str) -> bool:
    """Return whether a moment, by its key or name, is one of squared gradients: of Adam, RMSprop, Adagrad."""
    return key.endswith("_sq") or _key(key) in ("square_avg", "sum")


def _key(name: str) -> str:
    return name.rpartition("//")[2]


def _keys(names: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(map(_key, names))]


def _of_moments(view: View, key: str, names: list[str], of: Read) -> tuple[Fit, tuple[float, float, float]] | None:
    gradient = view.gradients(1)
    before = view.pair.reference.tensors(f"step{view.step - 1}/optimizer")
    if gradient is None:
        return None
    has_before = all(name in before for name in names)
    terms: list[Read] = [lambda name: before[name].double()] * has_before
    terms.append(lambda name: gradient(name) ** (2 if is_square_of_gradients(key) else 1))
    for more in ([], [view.before]):  # decay that is added to the gradient
        if (not more or not is_square_of_gradients(key)) and (fit := view.solve(names, [*terms, *more], of)):
            a, b, d = [0.0] * (not has_before) + fit.solved + [0.0] * (not more)
            return fit, (a, b, d)
    return None


def _moments(view: View) -> Iterator[Formula]:
    """m' = a' m before + b' g: other coefficients, a gradient with a factor, or moments that are lost."""
    if view.stage.kind != "optimizer state" or any(row.note for row in view.stage.wrong):
        return
    usual, fits, own = moments(view), [], {}
    for key in _keys(view.names):
        names = [name for name in view.names if _key(name) == key]
        if not (found := _of_moments(view, key, names, view.actual)):
            return
        fits.append(found[0])
        own[key] = found[1]
    fit = joined([each for one in fits for each in one.solved], fits)
    shown = "; ".join(
        f"{key} = {coefficient(a)} x that before + {coefficient(b)} x g"
        + "^2" * is_square_of_gradients(key)
        + f" + {coefficient(d)} x w" * bool(d)
        for key, (a, b, d) in own.items()
    )
    if not usual.keys() >= own.keys():
        counted = view.pair.reference.shown(view.step).get("optimizer_steps")
        if not usual and counted and counted != [0]:  # the reference goes on from moments of before the first step
            yield Formula("moments lost", "they begin with this step's gradient", shown, fit)
        return
    near = 10 * view.near
    # Moments that do not differ are those of a factor of 1.
    times = [abs(b / usual[key][1]) ** (0.5 if is_square_of_gradients(key) else 1) for key, (_, b, _) in own.items()]
    times += [1.0] * (len(usual) - len(own))
    sign = -1 if any(b / usual[key][1] < 0 for key, (_, b, _) in own.items()) else 1
    same = all(abs(a - usual[key][0]) <= near for key, (a, *_) in own.items())
    decays = all(view.same(d, usual[key][2], 100) for key, (*_, d) in own.items())
    is_factor = same and decays and all(view.same(each, times[0], 3) for each in times)
    if is_factor:
        fit = Fit([sign * times[0]], fit.left, fit.values, fit.tensors)
    by_factor = is_factor and not any(key in COEFFICIENTS for key, _ in different_settings(view))
    if by_factor:
        shown_factor = f"gradient in the optimizer = {coefficient(sign * times[0])} x the reference's"
        yield of_gradient(view, sign * times[0], fit, shown_factor)
    if not decays or (by_factor and len(usual) > 1):
        return
    if (
        view.step > view.pair.steps[0]
        and all(abs(a) < near for a, *_ in own.values())
        and all(view.same(b, usual[key][1], 10) for key, (_, b, _) in own.items())
    ):
        yield Formula("moments lost", "they begin anew", shown, fit)
    else:
        text = "; ".join(
            f"{key}: {', not '.join(f'{a:.6g} and {b:.6g}' for a, b, _ in (own[key], usual[key]))}" for key in own
        )
        yield Formula("coefficients of moments", text, shown, fit)


def _rate(view: View, times: float, fit: Fit) -> Formula:
    """Updates with a factor: of the rates or the steps that the trainings say, or of something else."""
    shown = f"update = {coefficient(times)} x the reference's"
    shown_of = [capture.shown(view.step) for capture in view.pair.captures]
    own, usual = (each.get("learning_rate") for each in shown_of)
    if isinstance(own, float) and isinstance(usual, float) and usual and view.same(own / usual, times, 10):
        text = f"{own:.6g}, not {usual:.6g}"
        return Formula("rate", text, f"{shown}, as the rates that they say", replace(fit, solved=[]))
    norm, limit = norm_of(view, "gradients"), _limit(view)
    if view.is_whole and norm and _clips(view, norm, limit, times * norm):
        shown += ", as of a gradient that is clipped to the limit that the training says"
        return Formula("clip", f"to a norm of {limit:.6g}", shown, replace(fit, solved=[]))
    text = number(times, view.near)
    if not view.is_whole:
        return Formula("factor of updates", f"{text} ({listed(view.names)})", shown, fit)
    if own is not None and own == usual:
        text += f" (both say a learning rate of {own})"
    return Formula("factor of updates", text, shown, fit)


def stated(view: View) -> Iterator[Formula]:
    """State and weights after PyTorch's own optimizer, with the settings that each training says: these differ."""
    own, usual = (settings(view, side) for side in (0, 1))
    parameters = {name.split("//")[0] for name in view.names}
    if not parameters <= own.keys() & usual.keys() or not any(bool(view.actual(name).any()) for name in view.names):
        return
    fit = view.holds(view.names, replay.of(view, 0, own))
    if not fit or not view.solved_by(view.names, replay.of(view, 1, usual)):
        return
    different = different_settings(view)
    if not any(key == "optimizer" for key, _ in different):

        def matters(key: str) -> bool:
            """Whether a step depends on a setting: with the other training's value, its result is another."""
            mine, theirs = (
                {name: each[name] | {key: other.get(name, {}).get(key)} for name in each}
                for each, other in ((own, usual), (usual, own))
            )
            holds = view.holds(view.names, replay.of(view, 0, mine))
            return not (holds and view.solved_by(view.names, replay.of(view, 1, theirs)))

        different = {(key, text): names for (key, text), names in different.items() if matters(key)}
    causes = {CAUSES_OF_SETTINGS.get(key, "settings") for key, _ in different}
    shown = [
        (f"{key} " * (len(different) > 1 or key not in CAUSES_OF_SETTINGS))
        + text
        + f" ({listed(names)})" * (len(names) < len(usual))
        for (key, text), names in different.items()
    ]
    if causes:
        cause = causes.pop() if len(causes) == 1 else "settings"
        kinds = listed(sorted({str(each["optimizer"]) for each in (*own.values(), *usual.values())}))
        yield Formula(
            cause, "; ".join(shown), f"{view.stage.kind} = that of PyTorch's {kinds} with what each says", fit
        )


def settings(view: View, side: int) -> dict[str, dict[str, Any]]:
    """Return what an optimizer says of each parameter: numbers and words, the betas, and the steps before this one."""
    shown = view.pair.captures[side].shown(view.step)
    found: dict[str, dict[str, Any]] = {}
    twice: set[str] = set()
    for group in shown.get("groups") or []:
        values = {key: value for key, value in group.items() if isinstance(value, int | float | str)}
        values |= {f"beta{number}": beta for number, beta in enumerate(group.get("betas") or [], 1)}
        if counts := shown.get("optimizer_steps"):
            values["count"] = counts[0]
        # What is in several groups, of several optimizers, has no settings of its own.
        twice |= found.keys() & {*group["params"]}
        found |= dict.fromkeys(group["params"], values)
    return {name: values for name, values in found.items() if name not in twice}


def _said(key: str, value: Any) -> str:
    if key == "decoupled_weight_decay":
        return DECOUPLED[bool(value)]
    return f"{value:.6g}" if type(value) in (int, float) else str(value)


def different_settings(view: View) -> dict[tuple[str, str], list[str]]:
    """Return (setting, "this value, not that one") of what the optimizers say: the parameters of which they do."""
    own, usual = (settings(view, side) for side in (0, 1))
    found: dict[tuple[str, str], list[str]] = {}
    for name in (each for each in usual if each in own):
        values, others = own[name], usual[name]
        for key in sorted(values.keys() & others.keys()):
            pair = (values[key], others[key])
            if len({replay.of_pytorch(each) if key == "optimizer" else each for each in pair}) > 1:
                text = ", not ".join(_said(key, value) for value in pair)
                found.setdefault((key, text), []).append(name)
    return found


Formulas = Callable[[View], Iterable[Formula]]
_PLAIN: tuple[Formulas, ...] = (_factor, _another_step, _cast)
_OF: dict[str, tuple[Formulas, ...]] = {
    "gradient": (*_PLAIN, _ranks, _previous, _decay),
    "clipped gradient": (*_PLAIN, _decay),
    "optimizer state": (*_PLAIN, stated, _moments, _decay),
    "update": (*_PLAIN, _decay, stated, _lost),
}
"""By the kind of a stage of tensors, where some are its own; samples and outputs have formulas of theirs."""
