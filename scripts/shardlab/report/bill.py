"""The bill of a folder's jobs: what they requested and used, by stage and strategy."""

from collections.abc import Iterable
from dataclasses import dataclass

HOUR = 3600.0
ALL = "all"
HOW = (
    "From Slurm's accounting (sacct), of all jobs that calls in this folder submitted. Used: time from a job's start "
    "to its end, times its devices. Requested: the time limit of each start, times its devices. Failed, a part of what "
    "was used: of starts that failed, were cancelled or preempted, or ran out of time; a training goes on from its "
    "checkpoint. Charged: what was used, by `billing` of the site's file."
)
NONE = "Slurm's accounting (sacct) has no jobs of this folder, or this machine has no accounting."


@dataclass(frozen=True)
class Use:
    """One start of a job."""

    stage: str
    strategy: str
    """Without its variant; empty for a job of no strategy."""
    devices: int
    charged: float
    """In the site's unit."""
    seconds: float
    limit_seconds: float | None
    """Requested time; None without a limit."""
    failed: bool


@dataclass(frozen=True)
class Bill:
    """A table of lines by stage and strategy, the last one their sum."""

    columns: list[str]
    rows: list[list[str]]
    note: str


def bill(uses: Iterable[Use], unit: str, charged: str) -> Bill:
    """Sum up what jobs used, in hours of a ``unit`` (GPU, or core of a cluster without GPUs), and what is ``charged``,
    which is the name of the site's unit.
    """
    lines: dict[tuple[str, str], list[Use]] = {}
    every = [*uses]
    for use in every:
        lines.setdefault((use.stage, use.strategy), []).append(use)
    rows = [[*name, *_sums(own)] for name, own in [*lines.items(), ((ALL, ""), every)]]
    columns = ["stage", "strategy", "jobs", f"requested {unit}-hours", "used", "failed", f"charged {charged}"]
    return Bill(columns, rows, HOW) if every else Bill([], [], NONE)


def _sums(uses: list[Use]) -> list[str]:
    requested = [use.devices * use.limit_seconds for use in uses if use.limit_seconds is not None]
    used = sum(use.devices * use.seconds for use in uses)
    failed = sum(use.devices * use.seconds for use in uses if use.failed)
    hours = [number(seconds / HOUR) for seconds in (used, failed)] + [number(sum(use.charged for use in uses))]
    return [str(len(uses)), number(sum(requested) / HOUR) if requested else "", *hours]


def markdown(made: Bill) -> str:
    """Format a bill as results/bill.md."""
    table = [made.columns, ["---"] * len(made.columns), *made.rows] if made.rows else []
    return "\n".join(["# Bill", "", *(f"| {' | '.join(row)} |" for row in table), "", made.note, ""])


def number(hours: float) -> str:
    """Format hours with three digits, or all digits before the decimal point."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
