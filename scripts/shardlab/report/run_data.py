"""Data of a call's runs for tables, charts and the report: the rows of summary.csv that have results; and the families
of their strategies, so that charts need a few colors instead of one per strategy.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from shardlab.errors import UserError
from shardlab.records import metrics, plan
from shardlab.records.plan import Plan
from shardlab.records.reports import TrainReport
from shardlab.records.timeline import Timeline
from shardlab.settings.mesh import split_by
from shardlab.settings.types import Run

POINTS, MARKS = 200, 10_000
"""Maximum steps of a run, and of all runs together, in a chart; more are thinned out evenly."""


@dataclass(frozen=True)
class Family:
    """How a family is drawn, on a light and on a dark background, and what its strategies split."""

    color: str
    shape: str
    """As Vega names it, or as a path."""
    splits: frozenset[str] | None = None
    """Splits by the axes of the mesh; None: known otherwise."""


HALF_DISK = "M-.5,-1A1,1,0,0,1,-.5,1Z"
STAR = "M0.00,-1.25L0.32,-0.44L1.19,-0.39L0.52,0.17L0.73,1.01L0.00,0.55L-0.73,1.01L-0.52,0.17L-1.19,-0.39L-0.32,-0.44Z"
"""Paths of shapes that Vega does not name, in a square from about -1 to 1."""
FAMILIES = {
    "one device": Family("#8b949e", "cross"),
    "data parallel": Family("#3f8ae0", "circle", frozenset({"samples"})),
    "sharded data parallel": Family("#e0802c", "square", frozenset({"samples", "states"})),
    "ZeRO (DeepSpeed)": Family("#d9514e", "diamond"),
    "pipeline / model": Family("#3ba272", "triangle-right", frozenset({"layers"})),
    "tensor parallel": Family("#9a6fdd", "triangle-up", frozenset({"tensors"})),
    "context parallel": Family("#2aa5b8", HALF_DISK, frozenset({"sequence", "states"})),
    "expert parallel": Family("#5a3cff", STAR, frozenset({"samples", "states", "experts"})),
    "combined": Family("#d65fa6", "triangle-down"),
    "other": Family("#9c7a4a", "triangle-left"),
}
"""In the order of legends."""


def family(train: TrainReport) -> str:
    """The family of a run's strategy, from its engine and the axes of its mesh, whatever the strategy is called."""
    run = Run.model_validate(train.settings)
    if run.engine == "deepspeed":
        return "ZeRO (DeepSpeed)"
    if run.options.single_process:
        return {"dp": "data parallel", "mp": "pipeline / model"}[run.options.single_process]
    axes = run.mesh.root
    if not axes:
        return "one device"
    splits, others = frozenset(split_by(axes)), "combined" if len(axes) > 1 else "other"
    return next((name for name, each in FAMILIES.items() if each.splits == splits), others)


@dataclass(frozen=True)
class Shown:
    """A finished run that belongs to the call."""

    train: TrainReport
    steps: pd.DataFrame
    """step, loss, expert_load (tokens by layer and expert), dropped_tokens: one row per training step, in order; the
    last two are missing without experts."""
    timeline: Timeline | None = None
    """One step; None if none was recorded, or it belongs to another training."""
    plan: Plan | None = None
    """Its plan; None if it was not planned."""

    @property
    def name(self) -> str:
        """Strategy and workload, as in the path of its folder."""
        return f"{self.train.strategy}/{self.train.workload}"


@dataclass(frozen=True)
class RunData:
    """All runs of a call: ``table`` as in summary.csv, ``runs`` those of its rows that have results."""

    table: pd.DataFrame
    runs: list[Shown]
    singles: list[Shown] = field(default_factory=list)
    """The runs of ``single``, to compare with."""
    events: int = MARKS
    """Maximum messages, or micro-batches, per rank in a chart."""

    def for_workload(self, workload: str) -> "RunData":
        rows = self.table[self.table.workload == workload]
        return replace(self, table=rows, runs=[run for run in self.runs if run.train.workload == workload])

    def under(self, strategy: str) -> "RunData":
        """Return the runs of one strategy, the one with the most parameters first."""
        runs = [run for run in self.runs if run.train.strategy == strategy]
        return replace(
            self,
            table=self.table[self.table.strategy == strategy],
            runs=sorted(runs, key=lambda run: -run.train.parameters),
            singles=[run for run in self.runs if run.train.strategy == "single"],
            events=max(20, 3 * MARKS // max(1, sum(run.train.world_size for run in self.runs))),
        )

    @cached_property
    def families(self) -> dict[str, str]:
        """Family of each strategy that has a run."""
        return {run.train.strategy: family(run.train) for run in self.runs}

    @cached_property
    def steps(self) -> pd.DataFrame:
        """strategy, family, step, loss, single (the loss of ``single`` in that step), chosen for drawing."""
        single = next((run.steps.set_index("step").loss for run in self.runs if run.train.strategy == "single"), None)
        parts = []
        most = min(POINTS, max(10, MARKS // max(1, len(self.runs))))
        for run in self.runs:
            every = max(1, -(-len(run.steps) // most))
            part = run.steps.iloc[::every].assign(strategy=run.train.strategy, family=self.families[run.train.strategy])
            parts.append(part.assign(single=part.step.map(single) if single is not None else None))
        columns = ["strategy", "family", "step", "loss", "single"]
        return pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)


def collect(table: pd.DataFrame, results: Path, workloads: list[str] | None = None) -> RunData:
    """Read the data of the rows of ``table`` (see summary.collect), or only of these workloads."""
    runs = []
    rows = table if workloads is None else table[table.workload.isin(workloads)]
    for row in rows[rows.validation_loss.notna()].itertuples():
        folder = results / str(row.strategy) / str(row.workload)
        train = TrainReport.read(folder / "train.json", "train again")
        steps = [record for record in metrics.read(folder / metrics.NAME) if record["kind"] == "train"]
        columns = ["step", "loss", "expert_load", "dropped_tokens"]
        timeline = _timeline(folder / "timeline.json", train)
        planned = plan.find(Run.model_validate(train.settings), results)
        runs.append(Shown(train, pd.DataFrame(steps, columns=columns), timeline, planned))
    return RunData(table, runs)


def _timeline(path: Path, train: TrainReport) -> Timeline | None:
    """Return the run's timeline; None instead of an error, which should not prevent the report."""
    try:
        timeline = Timeline.read(path, "train again")
    except UserError:
        return None
    return timeline if timeline.identity == train.identity else None
