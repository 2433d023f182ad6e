"""Where two trainings differ first, which formulas explain that, what can only be said of the place; and its page."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

from traindiff import formulas, outputs, sample_weights
from traindiff.capture_files import InputError
from traindiff.comparison import STAGES, stages
from traindiff.fit import PART, View, listed, number, ranges
from traindiff.formulas import CHECKS, Formula, fewest, meaning
from traindiff.pair import FILES, LIMITS, SCALARS, Pair, Row, Stage

TENSORS = (*FILES, "update", "initial weights", "buffers")
"""Stages of which formulas recompute tensors."""
LISTED = 12
"""Most tensors that a page lists."""
NEAR_NORMS = 1e-5
"""How near two norms are that are the same: several parts are looked at."""
OF_OPTIMIZER = ("optimizer state", "update")
"""Stages that an optimizer's settings explain."""
BEFORE_UPDATES = ("samples", "gradient", "clipped gradient", "optimizer state")
"""Stages that may differ where updates are equal: reduction or state inside the optimizer, for example."""


@dataclass(frozen=True)
class Diagnosis:
    """What was compared, and what came out."""

    pair: Pair
    compared: list[Stage]
    """Stages up to the last one of the step in which the first difference is."""
    first: Stage | None = None
    causes: list[Formula] = field(default_factory=list)
    """Formulas that hold, equally."""
    places: list[str] = field(default_factory=list)
    """Sentences about the place: what was seen, without a cause."""
    notes: list[str] = field(default_factory=list)
    """Sentences on what differs though updates are equal."""

    @property
    def sentence(self) -> str:
        if self.first is None:
            steps = self.pair.steps
            return f"Nothing differs in step{'s' * (len(steps) > 1)} {ranges(steps)}."
        wrong, rows = self.first.wrong, self.first.rows
        count = f" ({len(wrong)} of {len(rows)}, first {wrong[0].name})" if len(rows) > 1 else f" ({wrong[0].name})"
        count = "" if wrong[0].name == self.first.kind else count
        named = "; no formula fits"
        if self.causes:
            each = [cause.name for cause in self.causes]
            named = f"; cause: {each[0]}" if len(each) == 1 else f"; causes that fit equally: {', or '.join(each)}"
        step = "after the last step" if self.first.step < 0 else f"step {self.first.step}"
        return f"First difference: {step}, {self.first.kind}{count}{named}."


def diagnose(pair: Pair) -> Diagnosis:
    """Compare two captures, stage by stage, to the end of the first step that differs.

    Raises:
        InputError: they have nothing in common, or other parameters.
    """
    compared: list[Stage] = []
    excused: list[Stage] = []
    first = None
    for stage in stages(pair):
        if first is not None and stage.step != first.step:
            break
        compared.append(stage)
        if first is None and stage.wrong:
            if stage.kind in BEFORE_UPDATES and _updates_are_equal(pair, stage):
                excused.append(stage)
            else:
                first = stage
    if not any(stage.rows for stage in compared):
        raise InputError(f"{pair.actual.folder} and {pair.reference.folder} have no tensors of the same step and kind.")
    notes = [
        _excused([stage for stage in excused if stage.kind == kind]) for kind in dict.fromkeys(s.kind for s in excused)
    ]
    if first is None or first.kind not in OF_OPTIMIZER:
        notes += _settings(View(pair, compared[-1]))
    if first is None:
        notes += sample_weights.disagreements(pair, pair.steps[-1])
        return Diagnosis(pair, compared, notes=notes)
    view = View(pair, first)
    causes = _causes(view)
    return Diagnosis(pair, compared, first, causes, _places(view, causes), notes)


def _excused(found: list[Stage]) -> str:
    wrong, kind = found[0].wrong[0], found[0].kind
    steps = f"Step{'s' * (len(found) > 1)} {ranges(stage.step for stage in found)}: "
    if kind == "samples":
        return f"{steps}the samples have other names ({wrong.note}), but numbers show that they are the same."
    return f"{steps}{kind} differs ({wrong.name}: {wrong.difference:.1e}), but all updates are equal."


def _updates_are_equal(pair: Pair, stage: Stage) -> bool:
    """Return whether a difference before the update does not reach any: all are equal, and the reference's not 0."""
    updates, states, gradients = (_rows(pair, kind) for kind in ("update", "optimizer state", "gradient"))
    of_step = [row for step, row in updates if step == stage.step]
    equal = bool(updates) and not any(row.differs for _, row in updates)
    if stage.kind == "samples":
        own = [row for step, row in gradients if step == stage.step]
        if equal or (own and not updates and not any(row.differs for row in own)):
            return True
        # All names are others: the samples are the same ones if a formula holds for the gradient.
        names = _named(pair, 0, stage.step)
        is_disjoint = not any(names & _named(pair, 1, other) for other in pair.reference.steps)
        own_stage = Stage(stage.step, "gradient", own)
        return is_disjoint and bool(own_stage.wrong and _causes(View(pair, own_stage)))
    if not equal or not any(bool(pair.reference.updates(stage.step)(row.name).any()) for row in of_step):
        return False
    wrong = [row for _, row in states if row.differs]
    if stage.kind == "optimizer state" or wrong:
        # A frozen parameter, and one whose rate is 0, differ in what only one of them has.
        files = [capture.tensors(f"step{stage.step}/{FILES[stage.kind]}") for capture in pair.captures]
        only_one_has = all((row.name in files[0]) != (row.name in files[1]) for row in stage.wrong)
        return only_one_has and all(math.isinf(row.difference) for row in wrong)
    # A factor is hidden by clipping, or by Adam; that of a loss scale may be taken out inside the optimizer.
    found = formulas.explain(View(pair, stage)) if stage.kind == "gradient" else []
    return not any(cause.cause.startswith("factor") and "loss scale" not in cause.text for cause in found)


@lru_cache(maxsize=3)
def _rows(pair: Pair, kind: str) -> list[tuple[int, Row]]:
    """Return the rows of a kind of stage in all steps, each with its step."""
    return [(step, row) for step in pair.steps for row in STAGES[kind](pair, step)]


# Causes


def _causes(view: View) -> list[Formula]:
    stage, pair = view.stage, view.pair
    if stage.kind in TENSORS and any(row.note or not math.isfinite(row.difference) for row in stage.wrong):
        return []
    if stage.kind == "samples":
        return _of_samples(view)
    if stage.kind == "output":
        return outputs.explain(pair, stage)
    if stage.kind == "gradient":
        return fewest([*formulas.explain(view), *sample_weights.explain(view)])
    if stage.kind in TENSORS:
        return formulas.explain(view)
    if stage.kind == "norm":
        return _of_norm(view)
    if stage.kind == "restored checkpoint":
        return _of_restored(view)
    return []


def _of_samples(view: View) -> list[Formula]:
    """Other samples, where also numbers differ: by their names alone."""
    row = view.stage.wrong[0]
    own, others = _named(view.pair, 0, view.step), {s: _named(view.pair, 1, s) for s in view.pair.reference.steps}
    steps = [step for step, other in others.items() if own == other]
    text = f"those of step {steps[0]}" if steps and steps[0] != view.step else row.note
    unknown = own.difference(*others.values())
    if unknown == own:
        text = "the reference reads none of them in its steps"
    if any(isinstance(each, str) for each in unknown):  # a digest of values, which are not of the sample alone
        text += "; or the same ones, prepared otherwise"
    read = {(sample, rank) for sample, rank, _ in sample_weights.reads(view.pair, 0, view.step)}
    ranks = {rank for _, rank in read}
    if len(ranks) > 1 and len(read) == len(own) * len(ranks):
        text = f"ranks {ranges(ranks)} read the same ones; {text}"
    return [Formula("other samples", text)]


def _named(pair: Pair, side: int, step: int) -> set[object]:
    return {*sample_weights.counted(pair, side, step)}


def _of_norm(view: View) -> list[Formula]:
    """n' = the norm of one rank's part of the gradients, or times a known number."""
    pair, step = view.pair, view.step
    values = [capture.about["steps"][step]["norm"] for capture in pair.captures]
    if not all(math.isfinite(value) and value > 0 for value in values):
        return []
    times = values[0] / values[1]
    squares: dict[int, float] = defaultdict(float)
    parts = {}
    for rank in pair.actual.ranks(step):
        for name, (norm, _, part) in rank.notes.get("gradients", {}).items():
            squares[rank.rank] += norm**2
            parts[name, tuple(part)] = norm**2
    for of_rank, square in squares.items() if len(squares) > 1 else ():
        off = abs(square / (sum(parts.values()) or 1.0) - times**2)
        if off <= min(4 * min(view.near, NEAR_NORMS) * times**2, view.limit(PART) * abs(1 - times**2)):
            return [Formula("norm of some", f"of the part of rank {of_rank}")]
    means = meaning(pair, step, times, view.near)
    is_plain = any(f"{each:.9g}" == f"{each:.2g}" for each in (times, 1 / times))
    return [Formula("norm with a factor", number(times) + means)] if means or is_plain else []


def _of_restored(view: View) -> list[Formula]:
    """A step that is another one, or an optimizer's state that is 0 or missing."""
    about, restored = view.pair.actual.about, view.pair.actual.tensors("restored/optimizer")
    wrong = [row.name for row in view.stage.wrong]
    if "step" in wrong:
        late = about["resumed_at"] - view.pair.actual.steps[-1] - 1
        return [Formula("restored state", f"the step, {late} too late")]
    names = [name.removeprefix("optimizer ") for name in wrong]
    is_of_state = all(name.startswith("optimizer ") for name in wrong)
    if is_of_state and not any(name in restored and bool(restored[name].any()) for name in names):
        return [Formula("restored state", "the optimizer's is not there")]
    return []


# Places


def _places(view: View, causes: list[Formula]) -> list[str]:
    """Return what the place shows."""
    pair, stage = view.pair, view.stage
    found = []
    if stage.kind in TENSORS:
        found += [each for place in (_of_names, _not_finite, _one_sided, _of_losses) for each in place(view)]
    if stage.kind in OF_OPTIMIZER:
        found += _settings(view)
    if stage.kind == "output":
        found += outputs.places(stage)
    elif stage.kind not in (*TENSORS, "samples"):
        found += [f"{row.name}: {row.note}." for row in stage.wrong if row.note]
    if stage.kind in ("loss", "reported loss") and _is_alone(view):
        found.append("Gradients and updates of this step, where they are compared, are equal: the loss alone differs.")
    found += sample_weights.disagreements(pair, max(stage.step, 0))
    if not causes and stage.kind == "gradient" and not pair.reference.tensors(f"step{stage.step}/samples"):
        found.append("`dumped.samples(losses)` in the reference would show the weights of ranks and micro-batches.")
    is_finite = all(math.isfinite(row.difference) for row in stage.wrong)
    if not causes and is_finite and stage.kind in TENSORS and view.limit(LIMITS) > LIMITS["F64"]:
        found.append("With both trainings in float64, rounding would be told apart.")
    return found


def _is_alone(view: View) -> bool:
    """Return whether gradients or updates of the step are compared, and equal."""
    rows = [row for kind in ("gradient", "update") for step, row in _rows(view.pair, kind) if step == view.step]
    return bool(rows) and not any(row.differs for row in rows)


def _of_losses(view: View) -> list[str]:
    """Return what dumps' losses say of the forward pass."""
    own, usual = (capture.shown(view.step).get("loss") for capture in view.pair.captures)
    if view.stage.kind != "gradient" or own is None or usual is None or view.pair.actual.ranks(view.step):
        return []
    same = abs(own - usual) <= view.limit(SCALARS) * abs(usual)
    return [f"The loss is {own:.8g}, in the reference {'the same' if same else f'{usual:.8g}'}."]


def _of_names(view: View) -> list[str]:
    """Return where the backward pass goes wrong."""
    pair, stage = view.pair, view.stage
    modules, ranks = pair.reference.about.get("modules"), pair.reference.ranks(stage.step)
    if stage.kind != "gradient" or not modules or not ranks:
        return []
    order = ranks[0].order

    def returns(name: str) -> int:
        """When the module of a parameter returns."""
        return order.get(name.rpartition(".")[0], -1)

    latest = max((row.name for row in stage.wrong), key=returns)
    own = " of a ".join([latest, *modules.get(latest.rpartition(".")[0], [])[:1]])
    after = [row.name for row in stage.rows if not row.differs and returns(row.name) > returns(latest)]
    following = min(after, key=returns, default="")
    return [f"In the backward pass, gradients are equal down to {following}, and differ from {own} on."] * bool(after)


def _not_finite(view: View) -> list[str]:
    """Return which tensor is not finite, and in which of the two."""
    for row in view.stage.wrong:
        if math.isfinite(row.difference) or row.note:
            continue
        values = [view.actual(row.name), view.expected(row.name)]
        counts = [int((~each.isfinite()).sum()) for each in values]
        where = "both" if all(counts) else "the reference" if counts[1] else "this training"
        kind = "not a number" if any(bool(each.isnan().any()) for each in values) else "infinite"
        return [f"{row.name} has values that are {kind}: {max(counts)} of {values[0].numel()}, in {where}."]
    return []


def _one_sided(view: View) -> list[str]:
    """Return which gradients only one of the trainings has."""
    found = []
    if view.stage.kind in ("gradient", "clipped gradient"):
        for capture in view.pair.captures:
            file = capture.tensors(view.file)
            if lacks := [name for name in view.names if name not in file]:
                found.append(f"Without a gradient in `{capture.folder}`, where it counts as 0: {listed(lacks)}.")
    return found


def _settings(view: View) -> list[str]:
    """Return what both optimizers say of their settings, where these differ, and which lacks a state."""
    of_state = view.stage.wrong if view.stage.kind == "optimizer state" else []
    missing = [row.name.partition("//") for row in of_state if row.note]
    keys, names = ([*dict.fromkeys(each[place] for each in missing)] for place in (2, 0))
    found = [f"Only one of the optimizers has {listed(keys)} of {listed(names)}."] * bool(missing)
    return found + [
        f"The optimizer says {key} {values}: for {listed(names)}."
        for (key, values), names in formulas.different_settings(view).items()
    ]


# The page


def markdown(found: Diagnosis, title: str) -> str:
    """Return the page: what differs first, its causes or its place, what was compared."""
    parts = [f"# {title}", "", f"**{found.sentence}**", "", *_conditions(found)]
    if found.first is not None:
        if found.causes:
            parts += ["## Cause" + "s that fit equally" * (len(found.causes) > 1), "", *_cause_lines(found), ""]
        parts += ["## What was seen", "", *(f"- {sentence}" for sentence in found.places)] * bool(found.places)
        parts += ["", *(_tensors(found.first) if found.first.kind != "samples" else []), ""]
    parts += ["## What was compared", "", *_stages(found), ""]
    return "\n".join(parts)


def _conditions(found: Diagnosis) -> list[str]:
    about, twin = found.pair.actual.about, found.pair.twin
    parts = []
    if "conditions" in about:
        parts.append(f"The first {len(found.pair.steps)} steps {about['conditions']}.")
    parts += [*about.get("notes", []), *found.notes]
    if twin:
        parts.append(
            "Differences up to the tolerance count as rounding: it is the larger of the dtype's limit and ten times "
            "the distance between the reference and its twin, which starts from weights perturbed by one rounding."
        )
    return [*parts, ""] if parts else []


def _cause_lines(found: Diagnosis) -> list[str]:
    lines = []
    for cause in found.causes:
        lines.append(f"- **{cause.name}**")
        if not math.isnan(cause.fit.left):
            lines.append(f"  - Its formula leaves {cause.fit.left:.1g} of the difference.")
        lines.append(f"  - Check: {CHECKS[cause.cause]}")
    table = next((cause.table for cause in found.causes if cause.table), [])
    return [*lines, "", *table] if table else lines


def _tensors(stage: Stage) -> list[str]:
    lines = [f"| {stage.kind} | relative difference | tolerance | |", "| --- | --- | --- | --- |"]
    for row in stage.wrong[:LISTED]:
        lines.append(f"| `{row.name}` | {row.difference:.1e} | {row.limit:.1e} | {row.note} |")
    if (more := len(stage.wrong) - LISTED) > 0:
        lines.append(f"| and {more} more | | | |")
    return lines


def _stages(found: Diagnosis) -> list[str]:
    """Return a table of stages: the steps around the first difference, or without one the worst of each kind."""
    shown = [(stage, row) for stage in found.compared if (row := stage.worst)]
    if found.first is not None:
        shown = [each for each in shown if each[0].step in (found.first.step, found.first.step - 1)]
    else:
        kinds = dict.fromkeys(stage.kind for stage, _ in shown)
        shown = [
            max((each for each in shown if each[0].kind == kind), key=lambda each: each[1].share) for kind in kinds
        ]
    lines = [
        "| step | stage | compared | largest difference | tolerance | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    excused = found.compared[: found.compared.index(found.first)] if found.first else found.compared
    for stage, row in shown:
        verdict = f"**{len(stage.wrong)} differ**" if stage.wrong else "equal"
        verdict = f"{len(stage.wrong)} differ, see above" if stage.wrong and stage in excused else verdict
        step = "end" if stage.step < 0 else stage.step
        lines.append(
            f"| {step} | {stage.kind} | {len(stage.rows)} | {row.difference:.1e} | {row.limit:.1e} | {verdict} |"
        )
    return lines
