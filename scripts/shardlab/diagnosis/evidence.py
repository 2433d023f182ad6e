"""What the first stage that differs shows: facts, by which causes.yaml is searched, and sentences for people."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from shardlab.diagnosis import patterns
from shardlab.diagnosis.of_factors import look_at_factors, name_factor
from shardlab.diagnosis.of_outputs import look_at_outputs
from shardlab.diagnosis.of_parts import fit_parts
from shardlab.diagnosis.pair import FILES, Pair, Stage, owner
from shardlab.diagnosis.plan import look_at_plan
from shardlab.diagnosis.stages import has_update, updates


@dataclass
class Evidence:
    """Facts, each with one or more values, and sentences."""

    facts: dict[str, set[str]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)

    def note(self, fact: str, *values: str) -> None:
        """Add values of a fact."""
        self.facts.setdefault(fact, set()).update(values)

    def say(self, sentence: str) -> None:
        """Add a sentence."""
        self.sentences.append(sentence)

    def __contains__(self, fact: str) -> bool:
        """True if a fact is known."""
        return fact in self.facts


def gather(pair: Pair, stage: Stage, later: list[Stage]) -> Evidence:
    """Look at the first stage that differs; ``later``: the others of its step."""
    found = Evidence()
    about = pair.actual.about
    found.note("stage", stage.kind)
    found.note("step", "first" if stage.step == pair.steps[0] else "after the last" if stage.step < 0 else "later")
    found.note("axis", *about.get("mesh", {}), about.get("engine", ""), about.get("context") or "")
    for later_stage in later:
        if later_stage.wrong:
            found.note("later", later_stage.kind)
    if stage.kind in (*FILES, "update"):
        _look_at_tensors(pair, stage, found)
        _disagreements(pair, stage.step, found)
    elif stage.kind == "norm":
        _look_at_norm(pair, stage, found)
        _disagreements(pair, stage.step, found)
    elif stage.kind in ("output", "batch"):
        look_at_outputs(pair, stage, found)
        _disagreements(pair, stage.step, found)
    elif stage.kind in ("loss", "evaluation", "schedule"):
        for row in stage.wrong:
            found.note("name", row.name)
            ratio = _ratio(row.note)
            if ratio is not None:
                name_factor(pair, ratio, found, f"`{row.name}`")
        if stage.kind == "loss":
            _also_the_gradient(pair, stage.step, found)
    else:
        found.note("name", *(row.name.split(" ")[0] for row in stage.wrong))
        _disagreements(pair, max(stage.step, 0), found)
    look_at_plan(pair, stage, found)
    return found


def _also_the_gradient(pair: Pair, step: int, found: Evidence) -> None:
    names = pair.reference.tensors(f"step{step}/gradients").names
    if step == 0 and names:
        fit_parts(pair, names, pair.actual.tensors(f"step{step}/gradients").__getitem__, found, pair.fits)


def _readers(pair: Pair, stage: Stage) -> tuple[Callable[[str], Tensor], Callable[[str], Tensor]]:
    if stage.kind == "update":
        return updates(pair.actual, stage.step), updates(pair.reference, stage.step)
    name = f"step{stage.step}/{FILES[stage.kind]}"
    return pair.actual.tensors(name).__getitem__, pair.reference.tensors(name).__getitem__


def _look_at_tensors(pair: Pair, stage: Stage, found: Evidence) -> None:
    wrong = [row.name for row in stage.wrong]
    found.note("names", "all" if len(wrong) == len(stage.rows) else "one" if len(wrong) == 1 else "some")
    _look_at_names(pair, stage, found)
    if any(row.note for row in stage.wrong):
        found.note("pattern", "missing")
        names = pair.reference.about.get("parameters", [])
        if stage.kind == "optimizer state" and names and has_update(pair.actual, stage.step):
            update = updates(pair.actual, stage.step)
            found.note("update", "none" if not any(bool(update(name).any()) for name in names) else "some")
        found.say("Some tensors are missing in one of the two trainings.")
        return
    actual, expected = _readers(pair, stage)
    if any(not math.isfinite(row.apart) for row in stage.wrong):
        found.note("pattern", "nan")
        found.say(patterns.not_finite(wrong, actual, expected))
        return
    fits = {name: patterns.factor(actual(name), expected(name)) for name in wrong}
    good = {name: fit.coefficients[0] for name, fit in fits.items() if fit.is_factor(pair.fits)}
    zero = [name for name in wrong if not bool(actual(name).any())]
    if len(zero) == len(wrong):
        found.note("pattern", "zero")
        found.say("The affected tensors are zero.")
    elif len(good) == len(wrong):
        look_at_factors(pair, good, found)
    else:
        _mixture(pair, stage, wrong, actual, expected, found)
    if stage.kind == "clipped gradient":
        own = pair.actual.tensors(f"step{stage.step}/gradients")
        if all(name in own and _is_same(actual(name), own[name], pair.fits) for name in wrong[:3]):
            found.note("pattern", "unclipped")
            found.say("These are the gradients before clipping.")


def _is_same(value: Tensor, other: Tensor, fits: float) -> bool:
    fit = patterns.factor(value, other)
    return abs(fit.coefficients[0] - 1) < fits and fit.rest < fits


def _mixture(
    pair: Pair,
    stage: Stage,
    wrong: list[str],
    actual: Callable[[str], Tensor],
    expected: Callable[[str], Tensor],
    found: Evidence,
) -> None:
    """Look for sums of other parts, then for a part of the rows that differ."""
    if stage.kind == "gradient" and stage.step == 0 and fit_parts(pair, wrong, actual, found, pair.fits):
        return
    before = pair.reference.tensors(f"step{stage.step - 1}/gradients")
    if stage.kind == "gradient" and before:
        fit = patterns.combination(wrong, actual, [expected, before.__getitem__])
        if fit.rest < pair.fits:
            found.note("pattern", "stale")
            found.say(f"The gradient still contains {fit.coefficients[1]:.4g} times that of the previous step.")
            return
    weights = pair.reference.tensors(f"step{stage.step - 1}/weights" if stage.step else "initial")
    if stage.kind in ("optimizer state", "update", "clipped gradient", "gradient") and weights:
        # Of Adam's state the first moment shows what is added to the gradient.
        names = [
            name
            for name in wrong
            if not name.endswith("//exp_avg_sq")
            and (parameter := name.split("//")[0]) in weights
            and weights[parameter].shape == expected(name).shape
        ]
        fit = patterns.combination(names, actual, [expected, lambda name: weights[name.split("//")[0]]])
        if fit.rest < pair.fits:
            found.note("pattern", "decay")
            found.say(f"The difference is {fit.coefficients[1]:.4g} times the weights.")
            return
    _rows(stage, wrong, actual, expected, pair, found)


def _rows(
    stage: Stage,
    wrong: list[str],
    actual: Callable[[str], Tensor],
    expected: Callable[[str], Tensor],
    pair: Pair,
    found: Evidence,
) -> None:
    name = wrong[0]
    row = next(row for row in stage.rows if row.name == name)
    value, other = actual(name).double(), expected(name).double()
    limit = row.limit * float(other.abs().max())
    for dim, indices in patterns.spans(value, other, limit)[:1]:
        found.note("pattern", "rows")
        text = patterns.ranges(indices)
        fit = patterns.factor(value.index_select(dim, _index(indices)), other.index_select(dim, _index(indices)))
        if fit.is_factor(pair.fits):
            name_factor(pair, fit.coefficients[0], found, f"{name}[{text}] along dimension {dim}")
        else:
            found.say(f"{name} differs only at indices {text} (of {value.shape[dim]}) along dimension {dim}.")
        return
    if patterns.is_permuted(value, other, limit):
        found.note("pattern", "permuted")
        found.say(f"{name} has the reference's rows in a different order.")
        return
    found.note("pattern", "none")
    if not bool(other.any()):
        found.say(f"{name} is zero in the reference.")
        return
    fit = patterns.factor(value, other)
    found.say(
        "Neither a factor nor a sum of parts explains the difference; the best factor, "
        f"{fit.coefficients[0]:.4g}, leaves a relative error of {fit.rest:.1e}."
    )


def _index(indices: list[int]) -> Tensor:
    import torch

    return torch.tensor(indices)


def _look_at_names(pair: Pair, stage: Stage, found: Evidence) -> None:
    """Note the classes of the modules of the affected parameter that the backward pass reaches first."""
    modules, ranks = pair.reference.about.get("modules"), pair.reference.ranks(stage.step)
    names = [row.parameter for row in stage.wrong]
    if not modules or not ranks:
        return
    order = ranks[0].order
    owners = {name: owner(name) for name in names}
    latest = max(names, key=lambda name: order.get(owners[name], -1))
    kinds = {modules[module][0] for module in owners.values() if module in modules}
    found.note("kinds", *(kinds if len(kinds) == 1 else set()))
    found.note("inside", *modules.get(owners[latest], []))
    found.note("parameter", latest.rpartition(".")[2])
    right = [row.parameter for row in stage.rows if not row.differs]
    after = [name for name in right if order.get(owner(name), -1) > order.get(owners[latest], -1)]
    if stage.kind == "gradient" and after and len(names) > 1:
        found.note("backward", "from within")
        following = min(after, key=lambda name: order.get(owner(name), -1))
        found.note("follows", *modules.get(owner(following), []))
        found.say(f"The backward pass is right down to {following} and wrong from {latest} on.")


def _disagreements(pair: Pair, step: int, found: Evidence) -> None:
    """Note the axes along which ranks that should hold the same gradients, or weights, do not."""
    ranks = pair.actual.ranks(step)
    partial = sorted({name for rank in ranks for name in rank.notes.get("partial", [])})
    if partial:
        found.note("partial", "tensors")
        found.say(f"The optimizer gets partial gradients, which are not reduced: {_some(partial)}.")
    for kind in ("gradients", "weights"):
        axes: dict[str, set[str]] = {}
        for number, rank in enumerate(ranks):
            for other in ranks[:number]:
                differ = [axis for axis in rank.place if rank.place[axis] != other.place[axis]]
                if len(differ) == 1:
                    for name, (norm, total, part) in rank.notes.get(kind, {}).items():
                        same = other.notes[kind].get(name)
                        if same and same[2] == part and not _near((norm, total), same):
                            axes.setdefault(differ[0], set()).add(name)
        for axis, names in axes.items():
            found.note("disagree", axis)
            found.say(f"Ranks along {axis} hold different {kind} that should be the same: {_some(sorted(names))}.")
        if axes:
            return


def _near(values: tuple[float, float], others: list[float]) -> bool:
    size = max(abs(values[0]), abs(others[0]), 1e-300)
    return all(
        abs(value - other) <= 1e-5 * size < math.inf or patterns.is_same_number(value, other)
        for value, other in zip(values, others, strict=False)
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _look_at_norm(pair: Pair, stage: Stage, found: Evidence) -> None:
    values = [capture.about["steps"][stage.step]["norm"] for capture in pair.captures]
    if not math.isfinite(values[0]) or not values[1]:
        found.note("pattern", "nan")
        found.say(f"The norm is {values[0]:.6g}, not {values[1]:.6g}, though the gradients are equal.")
        return
    found.note("pattern", "small" if values[0] < values[1] else "large")
    found.say(
        f"The norm is {values[0] / values[1]:.6g} times the reference's, although the gradients are equal: "
        + ("some parts are not counted." if values[0] < values[1] else "some parts are counted more than once.")
    )


def _ratio(note: str) -> float | None:
    """Return the ratio of a row's two numbers."""
    parts = note.split(", not ")
    try:
        return float(parts[0]) / float(parts[1])
    except (ValueError, IndexError, ZeroDivisionError):
        return None
