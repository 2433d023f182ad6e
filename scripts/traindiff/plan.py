"""The lines of a workload's tensor-parallel plan that concern the module that first differs."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from traindiff.pair import FILES, Pair, Stage, owner

if TYPE_CHECKING:
    from traindiff.evidence import Evidence


def look_at_plan(pair: Pair, stage: Stage, found: "Evidence") -> None:
    """Name these lines; without tensor parallelism there are none."""
    about = pair.actual.about
    plan: dict[str, str] = about.get("plan") or {}
    if not plan or stage.kind not in ("output", "update", *FILES):
        return
    module, before = _modules(pair, stage)
    if not module:
        return
    file = f"config/workloads/{about['workload'].partition('@')[0]}.yaml"
    found.say(f"{_line(plan, module)} in the plan of {file}.")
    if before:
        found.say(f"The module before it: {_line(plan, before)}.")
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


def _style(plan: dict[str, str], module: str) -> str | None:
    return next((style for pattern, style in plan.items() if _matches(module, pattern)), None)


def _matches(module: str, pattern: str) -> bool:
    return module.count(".") == pattern.count(".") and fnmatchcase(module, pattern)


def _line(plan: dict[str, str], module: str) -> str:
    for pattern, style in plan.items():
        if _matches(module, pattern):
            return f"`{module}` is `{style}` (`tensor: {{{pattern}: {style}}}`)"
    return f"`{module}` is not split (no entry of `tensor:` matches it)"
