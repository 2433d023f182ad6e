"""The bill of a call: what its jobs were planned to use, requested, used and lost, by stage and strategy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from shardlab.records.reports import Attempt

HOUR = 3600.0
ALL = "all"
HOW = (
    "Used: time from a job's start to its end, times its devices. Requested: the time limit of each start, times its "
    "devices. Lost, a part of what was used: of an attempt at a training that did not finish, its steps after its last "
    "checkpoint, by their share of its steps, or all of it if it saved nothing; of other jobs, all of one that failed, "
    "was cancelled or preempted, or ran out of time."
)
EFFICIENCY = (
    "CPU: CPU time used, of that of the allocated cores. Memory: the largest step's, of that requested. Both as `seff` "
    "computes them."
)


@dataclass(frozen=True)
class Use:
    """One start of a job."""

    stage: str
    strategy: str
    """Without its variant; empty for a job of no strategy."""
    devices: int
    nodes: int
    seconds: float
    lost_seconds: float = 0.0
    limit_seconds: float | None = None
    """Requested time."""
    cpu_seconds: tuple[float, float] | None = None
    """Used, and of the allocated cores."""
    memory_bytes: tuple[float, float] | None = None
    """Used, and requested."""
    joules: float | None = None


@dataclass(frozen=True)
class Source:
    """Where the figures of a bill come from."""

    unit: str
    """GPU, core (of a cluster without GPUs), or device (a process on this machine)."""
    text: str
    by_node: bool = False
    """The site bills whole nodes."""


@dataclass
class Line:
    """The sums of a stage and strategy, in hours."""

    jobs: int = 0
    used: float = 0.0
    lost: float = 0.0
    requested: float | None = None
    node_hours: float = 0.0
    cpu: list[float] = field(default_factory=lambda: [0.0, 0.0])
    memory: list[float] = field(default_factory=lambda: [0.0, 0.0])
    joules: float | None = None

    def add(self, use: Use) -> None:
        """Add one start of a job."""
        self.jobs += 1
        self.used += use.devices * use.seconds / HOUR
        self.lost += use.devices * use.lost_seconds / HOUR
        self.node_hours += use.nodes * use.seconds / HOUR
        if use.limit_seconds is not None:
            self.requested = (self.requested or 0.0) + use.devices * use.limit_seconds / HOUR
        for total, pair in ((self.cpu, use.cpu_seconds), (self.memory, use.memory_bytes)):
            for at, value in enumerate(pair or ()):
                total[at] += value
        if use.joules is not None:
            self.joules = (self.joules or 0.0) + use.joules


@dataclass(frozen=True)
class Bill:
    """A table of lines by stage and strategy, the last one their sum."""

    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def bill(uses: Iterable[Use], planned: dict[str, float | None], source: Source) -> Bill:
    """Sum up what jobs used; ``planned``: hours of devices of the trainings of each strategy, None if unknown."""
    lines: dict[tuple[str, str], Line] = {}
    total = Line()
    for use in uses:
        lines.setdefault((use.stage, use.strategy), Line()).add(use)
        total.add(use)
    for strategy in planned:
        lines.setdefault(("train", strategy), Line())
    known = [hours for hours in planned.values() if hours is not None]
    plans = {("train", strategy): hours for strategy, hours in planned.items()}
    whole = sum(known) if planned and len(known) == len(planned) else None
    unit = f"{source.unit}-hours"
    columns = ["stage", "strategy", "jobs", f"planned {unit}", "requested", "used", "lost"]
    extra = {
        "node-hours": source.by_node,
        "CPU": bool(total.cpu[1]),
        "memory": bool(total.memory[1]),
        "energy (kWh)": bool(total.joules),
    }
    rows = []
    for (stage, strategy), line in [*lines.items(), ((ALL, ""), total)]:
        hours = whole if stage == ALL else plans.get((stage, strategy))
        unknown = "unknown" if stage in (ALL, "train") else ""
        cells = [stage, strategy, str(line.jobs), unknown if hours is None else number(hours)]
        cells += ["" if line.requested is None else number(line.requested), number(line.used), number(line.lost)]
        more = {
            "node-hours": number(line.node_hours),
            "CPU": share(line.cpu),
            "memory": share(line.memory),
            "energy (kWh)": "" if line.joules is None else number(line.joules / 3.6e6),
        }
        rows.append(cells + [text for name, text in more.items() if extra[name]])
    notes = [source.text, HOW, *([EFFICIENCY] if extra["CPU"] else [])]
    return Bill(columns + [name for name, there in extra.items() if there], rows, notes)


def markdown(made: Bill) -> str:
    """Format a bill as results/bill.md."""
    table = [made.columns, ["---"] * len(made.columns), *made.rows]
    return "\n".join(["# Bill", "", *(f"| {' | '.join(row)} |" for row in table), "", *made.notes, ""])


def number(hours: float) -> str:
    """Format hours with three digits, or all digits before the decimal point."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def share(pair: Sequence[float]) -> str:
    """Format a part of a whole as a percentage; empty without a whole."""
    used, whole = pair
    return f"{used / whole:.0%}" if whole else ""


def seconds_of(moment: str) -> float:
    """Convert a time of attempts.json, in UTC, to seconds since 1970."""
    return datetime.strptime(moment, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def lost_seconds(attempt: Attempt, end: float) -> float:
    """Return the seconds of an attempt that the next one has to repeat; ``end``: when it ended (since 1970)."""
    if attempt.ended is None or attempt.why.startswith("finished"):
        return 0.0
    if not attempt.progress or attempt.first_step_at is None or attempt.reached is None or attempt.saved is None:
        return max(0.0, end - seconds_of(attempt.began))
    first = attempt.from_step or 0
    if attempt.reached <= first:
        return 0.0
    share_lost = max(0, attempt.reached - attempt.saved) / (attempt.reached - first)
    return max(0.0, end - seconds_of(attempt.first_step_at)) * share_lost
