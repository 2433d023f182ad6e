"""Where two trainings differ first, how, and what usually causes it."""

import math
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from traindiff import patterns
from traindiff.capture_files import InputError
from traindiff.comparison import stages
from traindiff.evidence import Cause, Evidence, usual_causes
from traindiff.factors import name_factor
from traindiff.outputs import look_at_outputs
from traindiff.pair import FILES, Pair, Stage, owner
from traindiff.sample_weights import look_at_samples
from traindiff.tensor_differences import look_at_tensors


@dataclass(frozen=True)
class Diagnosis:
    """What was compared, and what came out."""

    pair: Pair
    compared: list[Stage]
    """Stages up to the last one of the step in which the first difference is."""
    first: Stage | None = None
    evidence: Evidence = field(default_factory=Evidence)
    causes: list[Cause] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        if self.first is None:
            steps = self.pair.steps
            return f"Nothing differs in step{'s' * (len(steps) > 1)} {patterns.ranges(steps)}."
        wrong, rows = self.first.wrong, self.first.rows
        count = f"{len(wrong)} of {len(rows)}, first {wrong[0].name}" if len(rows) > 1 else wrong[0].name
        usual = f"; usual cause: {self.causes[0].cause}" if self.causes else "; no known pattern"
        step = "after the last step" if self.first.step < 0 else f"step {self.first.step}"
        return f"First difference: {step}, {self.first.kind} ({count}){usual}."


def diagnose(pair: Pair) -> Diagnosis:
    """Compare two captures, stage by stage, to the end of the first step that differs.

    Raises:
        InputError: they have nothing in common, or other parameters.
    """
    compared: list[Stage] = []
    first = None
    for stage in stages(pair):
        if first is not None and stage.step != first.step:
            break
        compared.append(stage)
        first = first or (stage if stage.wrong else None)
    if not any(stage.rows for stage in compared):
        raise InputError(f"{pair.actual.folder} and {pair.reference.folder} have no tensors of the same step and kind.")
    if first is None:
        return Diagnosis(pair, compared)
    evidence = _gather(pair, first, compared[compared.index(first) + 1 :])
    return Diagnosis(pair, compared, first, evidence, usual_causes(evidence))


def _gather(pair: Pair, stage: Stage, later: list[Stage]) -> Evidence:
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
            if row.ratio is not None:
                name_factor(pair, row.ratio, found, f"`{row.name}`")
        if stage.kind == "loss":
            look_at_samples(pair, stage.step, [], found)
    else:
        found.note("name", *(row.name.split(" ")[0] for row in stage.wrong))
        _disagreements(pair, max(stage.step, 0), found)
    _look_at_plan(pair, stage, found)
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
    found.note("inside", *modules.get(owners[latest], []))
    right = [row.parameter for row in stage.rows if not row.differs]
    after = [name for name in right if order.get(owner(name), -1) > order.get(owners[latest], -1)]
    if stage.kind == "gradient" and not after:
        found.note("backward", "from the loss")
    if stage.kind == "gradient" and len(names) == 1 < len(stage.rows):
        found.note("backward", "parameter alone")
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


def _look_at_plan(pair: Pair, stage: Stage, found: Evidence) -> None:
    """Name the entries of a tensor-parallel plan that concern the module that differs first."""
    plan = pair.actual.about.get("plan")
    if not plan or stage.kind not in ("output", "update", *FILES):
        return
    module, before = _modules(pair, stage)
    if not module:
        return
    found.say(f"{_entry(plan, module)} in the plan of {plan['file']}.")
    if before:
        found.say(f"The module before it: {_entry(plan, before)}.")
    if before and (_style(plan, before), _style(plan, module)) == ("column", "row"):
        found.note("plan", "column to row")
        found.say(
            f"Between {before} and {module}, each rank has only a part of the features, so nothing there may mix or "
            "reorder them (as a fused or gated layer, a softmax or a norm would)."
        )


def _modules(pair: Pair, stage: Stage) -> tuple[str, str]:
    """Return the module that differs first, in the direction of computation, and the last equal one before it."""
    if stage.kind == "output":
        return stage.wrong[0].module, stage.before.module if stage.before else ""
    ranks = pair.reference.ranks(stage.step)
    order = ranks[0].order if ranks else {}
    owners = [owner(row.parameter) for row in stage.wrong]
    return max(owners, key=lambda module: order.get(module, -1)), ""


def _pattern(plan: dict[str, Any], module: str) -> str | None:
    """Return the first pattern of a plan that matches a module; a `*` matches within one part of a name."""
    matching = (each for each in plan["styles"] if each.count(".") == module.count(".") and fnmatchcase(module, each))
    return next(matching, None)


def _style(plan: dict[str, Any], module: str) -> str | None:
    return plan["styles"].get(_pattern(plan, module))


def _entry(plan: dict[str, Any], module: str) -> str:
    pattern, style, key = _pattern(plan, module), _style(plan, module), plan["key"]
    if pattern is None:
        return f"`{module}` is not split (no entry of `{key}:` matches it)"
    return f"`{module}` is `{style}` (`{key}: {{{pattern}: {style}}}`)"
