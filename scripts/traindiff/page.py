"""The page of a diagnosis: where two trainings differ first, how, what usually causes it, if it is not rounding."""

from dataclasses import dataclass, field

from traindiff import causes, patterns
from traindiff.capture_files import InputError
from traindiff.causes import Cause
from traindiff.evidence import Evidence, gather
from traindiff.pair import Pair, Stage
from traindiff.stages import stages

LISTED = 12
"""Most tensors that a page lists."""


@dataclass(frozen=True)
class Diagnosis:
    """What was compared, and what came out."""

    pair: Pair
    steps: int
    """Number of steps that both have."""
    compared: list[Stage]
    """Stages up to the last one of the step in which the first difference is."""
    first: Stage | None = None
    evidence: Evidence = field(default_factory=Evidence)
    causes: list[Cause] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """One sentence."""
        if self.first is None:
            return f"Nothing differs in {_counted(self.pair.steps)}."
        wrong, rows = self.first.wrong, self.first.rows
        count = f"{len(wrong)} of {len(rows)}, first {wrong[0].name}" if len(rows) > 1 else wrong[0].name
        usual = f"; usual cause: {self.causes[0].cause}" if self.causes else "; no known pattern"
        return f"First difference: {where(self.first)}, {self.first.kind} ({count}){usual}."


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
        return Diagnosis(pair, len(pair.steps), compared)
    evidence = gather(pair, first, compared[compared.index(first) + 1 :])
    return Diagnosis(pair, len(pair.steps), compared, first, evidence, causes.usual(evidence))


def _counted(steps: list[int]) -> str:
    """Return steps as text."""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {patterns.ranges(steps)}"


def where(stage: Stage) -> str:
    """Return the step of a stage as text."""
    return "after the last step" if stage.step < 0 else f"step {stage.step}"


def markdown(found: Diagnosis, title: str) -> str:
    """Return the page."""
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
    if "strategy" in about:
        parts.append(
            f"The first {found.steps} steps in {about['dtype']}, without dropout, from the run's own "
            "settings, initial weights and batches."
        )
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
        lines.append(f"| `{row.name}` | {row.apart:.1e} | {row.limit:.1e} | {row.note} |")
    if (more := len(stage.wrong) - LISTED) > 0:
        lines.append(f"| and {more} more | | | |")
    return lines


def _causes(found: Diagnosis) -> list[str]:
    if not found.causes:
        excluded = found.evidence.excluded
        return ["No known pattern explains the difference." + f" Excluded: {'; '.join(excluded)}." * bool(excluded)]
    return [
        f"{number}. **{cause.cause}**: {cause.says} Check: {cause.look}" for number, cause in enumerate(found.causes, 1)
    ]


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
        lines.append(f"| {step} | {stage.kind} | {len(stage.rows)} | {row.apart:.1e} | {row.limit:.1e} | {verdict} |")
    return lines


def _share(stage: Stage) -> float:
    """Return how much of its limit the worst row of a stage takes."""
    return max((row.apart / row.limit for row in stage.rows), default=0.0)
