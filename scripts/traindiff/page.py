"""The page of a diagnosis, in Markdown."""

from traindiff.diagnosis import Diagnosis
from traindiff.formulas import CHECKS
from traindiff.pair import Stage

LISTED = 12
"""Most tensors that a page lists."""


def markdown(found: Diagnosis, title: str) -> str:
    """Return the page: what differs first, its causes or its place, what was compared."""
    parts = [f"# {title}", "", f"**{found.sentence}**", "", *_conditions(found)]
    if found.first is not None:
        if found.causes:
            parts += ["## Cause" + "s that fit equally" * (len(found.causes) > 1), "", *_causes(found), ""]
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


def _causes(found: Diagnosis) -> list[str]:
    lines = []
    for cause in found.causes:
        lines.append(f"- **{cause.name}**")
        fit = cause.fit
        if fit.tensors:
            lines.append(f"  - On {fit.on}, its formula leaves {fit.left:.1g} of the difference.")
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
