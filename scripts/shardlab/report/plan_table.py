"""plan.md: the plans of a call for people, and what follows from them."""

from collections.abc import Sequence
from typing import Any

from shardlab.records.plan import Plan
from shardlab.report.units import readable_bytes
from shardlab.settings import load
from shardlab.settings.config import Config
from shardlab.settings.sites import Hardware

HEADERS = ("strategy", "ranks", "memory a rank", "fits", "recompute", "TFLOP a step", "sent a rank")
RULE = ("ddp", "fsdp")
"""Rule of thumb: the first of these that fits."""


def markdown(plans: Sequence[Plan], refused: dict[tuple[str, str], str], config: Config) -> str:
    """Format tables by workload, the recommended strategy, and runs that could not be planned."""
    parts = ["# Plan", "", f"Site {config.site}. {_memory(load.site(config).hardware)}", ""]
    of_workload: dict[str, list[Plan]] = {}
    for plan in plans:
        of_workload.setdefault(plan.workload, []).append(plan)
    alike: dict[str, list[str]] = {}
    for workload, local in of_workload.items():
        lines = [_table(local), "", *([choice(local), ""] if len(local) > 1 else [])]
        alike.setdefault("\n".join(lines), []).append(workload)
    for text, (first, *more) in alike.items():
        others = f", and {len(more):,} variants of the same cost" if more else ""
        parts += [f"## {first}{others}", "", text]
    if refused:
        parts += ["## Not planned", ""] + [f"- {s} x {w}: {why}" for (s, w), why in refused.items()] + [""]
    return "\n".join(parts)


def _memory(hardware: Hardware) -> str:
    """Explain what the memory columns count, and what is left free for the rest."""
    text = (
        "Memory is the peak of one rank's tensors, on the fullest of its devices, without what plans do not count: "
        "the device's context, the buffers of communicators, fragmentation."
    )
    if hardware.device_memory_gib is None:
        return text
    return (
        f"{text} Of the {hardware.device_memory_gib:g} GiB of a device, `fits` leaves {hardware.unplanned_gib:g} GiB "
        "free for it (hardware.unplanned_gib)."
    )


def _table(plans: Sequence[Plan]) -> str:
    rows: list[list[Any]] = []
    for plan in plans:
        sent = [f"{entry.axis} {entry.collective} {readable_bytes(entry.bytes)}" for entry in plan.traffic]
        rows.append(
            [
                plan.strategy,
                plan.world_size,
                readable_bytes(plan.predicted_memory_bytes),
                {None: "", True: "yes", False: "no"}[plan.fits],
                plan.activation_checkpointing or "",
                "" if plan.flops_per_step is None else f"{plan.flops_per_step / 1e12:.3g}",
                ", ".join(sent) or "0",
            ]
        )
    # Not pandas.to_markdown: this runs in the image, which only has what training needs.
    lines = [HEADERS, ["---"] * len(HEADERS), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def choice(plans: Sequence[Plan]) -> str:
    """Recommend a strategy for one workload, with the reason."""
    fitting = [plan for plan in plans if plan.fits is not False]
    if not fitting:
        least = min(plans, key=lambda plan: plan.predicted_memory_bytes)
        return (
            f"Nothing fits: {least.strategy} needs least, {readable_bytes(least.predicted_memory_bytes)} per rank; use "
            "more ranks, a smaller global batch, or more recomputation."
        )
    by_name = {plan.strategy: plan for plan in fitting}
    known = next((name for name in RULE if name in by_name), next(iter(by_name)))
    least = min(fitting, key=lambda plan: plan.predicted_memory_bytes)
    why = "if that fits" if by_name[known].fits is None else "which fits"
    sentence = (
        f"By the rule of thumb, use {known}, {why} ({readable_bytes(by_name[known].predicted_memory_bytes)} per rank)"
    )
    if least.strategy != known:
        sentence += f"; {least.strategy} needs the least memory, {readable_bytes(least.predicted_memory_bytes)}"
    return sentence + "."
