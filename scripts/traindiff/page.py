"""The page of a diagnosis, in Markdown."""

from traindiff.diagnosis import Diagnosis
from traindiff.pair import FACTORS, Stage

LISTED = 12
"""Most tensors that a page lists."""


def markdown(found: Diagnosis, title: str) -> str:
    parts = [f"# {title}", "", f"**{found.sentence}**", "", *_conditions(found)]
    if found.first is not None:
        parts += ["## How it differs", "", *(f"- {sentence}" for sentence in found.evidence.sentences), ""]
        parts += [*found.evidence.table, ""] if found.evidence.table else []
        parts += [*_tensors(found.first), ""]
        parts += ["## Usual causes", "", *_causes(found), ""]
    parts += ["## What was compared", "", *_stages(found), ""]
    return "\n".join(parts)


def _conditions(found: Diagnosis) -> list[str]:
    about, twin = found.pair.actual.about, found.pair.twin
    parts = []
    if "conditions" in about:
        parts.append(f"The first {len(found.pair.steps)} steps {about['conditions']}.")
    parts += about.get("notes", [])
    if twin:
        parts.append(
            "Differences up to the tolerance count as rounding: it is the larger of the dtype's limit and ten times "
            "the distance between the reference and its twin, which starts from weights perturbed by one rounding."
        )
    return [*parts, ""] if parts else []


def _tensors(stage: Stage) -> list[str]:
    lines = [f"| {stage.kind} | relative difference | tolerance | |", "| --- | --- | --- | --- |"]
    for row in stage.wrong[:LISTED]:
        lines.append(f"| `{row.name}` | {row.difference:.1e} | {row.limit:.1e} | {row.note} |")
    if (more := len(stage.wrong) - LISTED) > 0:
        lines.append(f"| and {more} more | | | |")
    return lines


def _causes(found: Diagnosis) -> list[str]:
    if not found.causes:
        excluded = found.evidence.excluded
        return [
            "No known pattern explains the difference."
            + f" Excluded: {'; '.join(excluded)}." * bool(excluded)
            + " In low precision it may be rounding, which grows from step to step: compare with a --twin."
            * _may_be_rounding(found)
        ]
    return [
        f"{number}. **{cause.cause}**: {cause.says} Check: {cause.look}" for number, cause in enumerate(found.causes, 1)
    ]


def _may_be_rounding(found: Diagnosis) -> bool:
    """Return whether only later steps differ, in 16 bits and without a twin to tell."""
    first, pair = found.first, found.pair
    is_later = first is not None and first.step > pair.steps[0]
    return is_later and pair.twin is None and pair.near == FACTORS["BF16"]


def _stages(found: Diagnosis) -> list[str]:
    """Return a table of stages: the steps around the first difference, or without one the worst of each kind."""
    shown = [stage for stage in found.compared if stage.rows]
    if found.first is not None:
        shown = [stage for stage in shown if stage.step in (found.first.step, found.first.step - 1)]
    else:
        worst: dict[str, Stage] = {}
        for stage in shown:
            best = worst.get(stage.kind)
            worst[stage.kind] = stage if best is None or _share(stage) > _share(best) else best
        shown = [*worst.values()]
    lines = [
        "| step | stage | compared | largest difference | tolerance | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for stage in shown:
        row = stage.worst
        assert row is not None
        verdict = f"**{len(stage.wrong)} differ**" if stage.wrong else "equal"
        step = "end" if stage.step < 0 else stage.step
        lines.append(
            f"| {step} | {stage.kind} | {len(stage.rows)} | {row.difference:.1e} | {row.limit:.1e} | {verdict} |"
        )
    return lines


def _share(stage: Stage) -> float:
    """Return how much of its limit the worst row of a stage takes."""
    return max((row.difference / row.limit for row in stage.rows), default=0.0)
