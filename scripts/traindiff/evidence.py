"""What the first stage that differs shows: facts, by which causes.yaml is searched, and sentences for people."""

import math
from dataclasses import dataclass, field

from traindiff import patterns
from traindiff.of_factors import name_factor
from traindiff.of_outputs import look_at_outputs
from traindiff.of_samples import look_at_samples
from traindiff.of_tensors import look_at_tensors
from traindiff.pair import FILES, Pair, Stage, owner
from traindiff.plan import look_at_plan


@dataclass
class Evidence:
    """Facts, each with one or more values, and sentences."""

    facts: dict[str, set[str]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)
    """Lines of a table of the samples' weights."""
    excluded: list[str] = field(default_factory=list)
    """What was tried and does not explain the difference."""

    def note(self, fact: str, *values: str) -> None:
        """Add values of a fact."""
        self.facts.setdefault(fact, set()).update(values)

    def say(self, sentence: str) -> None:
        """Add a sentence."""
        self.sentences.append(sentence)

    def exclude(self, pattern: str, rest: float, of: str = "the difference") -> None:
        """Add a pattern that leaves too much."""
        left = f"leaves {rest:.0%} of {of}" if rest >= 0.005 else f"leaves {rest:.1g} of {of}"
        self.excluded.append(f"{pattern} ({left})" if math.isfinite(rest) else pattern)

    def __contains__(self, fact: str) -> bool:
        """True if a fact is known."""
        return fact in self.facts


def gather(pair: Pair, stage: Stage, later: list[Stage]) -> Evidence:
    """Look at the first stage that differs; ``later``: the others of its step."""
    found = Evidence()
    about = pair.actual.about
    found.note("stage", stage.kind)
    found.note("step", "first" if stage.step == pair.steps[0] else "after the last" if stage.step < 0 else "later")
    found.note("gradient", *_of_the_gradient(pair, stage))
    _look_at_rates(pair, stage, found)
    found.note("axis", *about.get("mesh", {}), about.get("engine", ""), about.get("context") or "")
    for later_stage in later:
        if later_stage.wrong:
            found.note("later", later_stage.kind)
    if stage.kind in (*FILES, "update", "initial weights", "buffers"):
        _look_at_names(pair, stage, found)
        look_at_tensors(pair, stage, found)
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
            look_at_samples(pair, stage.step, [], found)
    else:
        found.note("name", *(row.name.split(" ")[0] for row in stage.wrong))
        _disagreements(pair, max(stage.step, 0), found)
    look_at_plan(pair, stage, found)
    return found


def _look_at_rates(pair: Pair, stage: Stage, found: Evidence) -> None:
    """Note what both trainings say of their learning rates in a step."""
    rates = [capture.shown(stage.step).get("learning_rate") for capture in pair.captures]
    if None in rates:
        found.note("rate", "unknown")
        return
    found.note("rate", "equal" if rates[0] == rates[1] else "different")
    if stage.kind == "update":
        found.note("rate", *["zero"] * (rates[0] == 0 != rates[1]))
        found.say(f"The learning rate of the step is {rates[0]}, and in the reference {rates[1]}.")


def _of_the_gradient(pair: Pair, stage: Stage) -> list[str]:
    """Return whether the gradient before the stage is known, and thus equal."""
    known = all(capture.tensors(f"step{stage.step}/gradients") for capture in pair.captures)
    return ["equal" if known else "unknown"] if stage.kind != "gradient" else []


def _look_at_names(pair: Pair, stage: Stage, found: Evidence) -> None:
    """Note the classes of the modules of the affected parameter that the backward pass reaches first."""
    modules, ranks = pair.reference.about.get("modules"), pair.reference.ranks(stage.step)
    names = [row.parameter for row in stage.wrong]
    found.note("keys", *(name.rpartition(".")[2] for name in names))
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
        chain = [name for name in right if -1 < order.get(owner(name), -1) < order.get(owners[latest], -1)]
        found.note("backward", *["all from there"] * (not chain and stage.step == pair.steps[0]))
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
