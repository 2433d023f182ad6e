"""What the runs of a call left behind, for tables, charts and the report: those of summary.csv with figures."""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from shardlab.errors import UserError
from shardlab.report import metrics, notes
from shardlab.report.records import TestReport, TrainReport
from shardlab.report.timeline import Timeline

POINTS, MARKS = 200, 10_000
"""Steps of a run, and of all runs together, that a chart shows: evenly chosen where there are more."""


@dataclass(frozen=True)
class Shown:
    """One run that has come to its end and belongs to the call."""

    train: TrainReport
    test: TestReport | None
    steps: pd.DataFrame
    """step, loss, grad_norm, seconds: one row for each training step, in order."""
    usage: list[dict[str, Any]] = field(default_factory=list)
    """Records of what the ranks used."""
    timeline: Timeline | None = None
    """One step; None where none was kept, or that of another training."""

    @property
    def name(self) -> str:
        """Strategy and workload, as in the path of its folder."""
        return f"{self.train.strategy}/{self.train.workload}"


@dataclass(frozen=True)
class Evidence:
    """All runs of a call: ``table`` as summary.csv has it, ``runs`` those of its rows that have figures."""

    table: pd.DataFrame
    runs: list[Shown]
    results: Path
    jobs: pd.DataFrame
    """rule, name, start, end (seconds since the first one began) of the workflow's jobs whose files are here."""
    singles: list[Shown] = field(default_factory=list)
    """The runs of ``single``, to compare with."""
    events: int = MARKS
    """Messages, or micro-batches, of each rank that a chart shows."""

    def of(self, workload: str) -> "Evidence":
        """The runs of one workload."""
        rows = self.table[self.table.workload == workload]
        return replace(self, table=rows, runs=[run for run in self.runs if run.train.workload == workload])

    def under(self, strategy: str) -> "Evidence":
        """The runs of one strategy, the one with the most parameters first."""
        runs = [run for run in self.runs if run.train.strategy == strategy]
        return replace(
            self,
            table=self.table[self.table.strategy == strategy],
            runs=sorted(runs, key=lambda run: -run.train.parameters),
            singles=[run for run in self.runs if run.train.strategy == "single"],
            events=max(20, 3 * MARKS // max(1, sum(run.train.world_size for run in self.runs))),
        )

    def study(self, pattern: str) -> pd.DataFrame:
        """The tables of a study that was made beside the runs; empty without any."""
        found = [pd.read_csv(path) for path in sorted(self.results.glob(pattern))]
        return pd.concat(found) if found else pd.DataFrame()

    @cached_property
    def steps(self) -> pd.DataFrame:
        """strategy, step, loss, seconds, single (the loss of ``single`` in that step), chosen for drawing."""
        single = next((run.steps.set_index("step").loss for run in self.runs if run.train.strategy == "single"), None)
        parts = []
        most = min(POINTS, max(10, MARKS // max(1, len(self.runs))))
        for run in self.runs:
            every = max(1, -(-len(run.steps) // most))
            part = run.steps.iloc[::every].assign(strategy=run.train.strategy)
            parts.append(part.assign(single=part.step.map(single) if single is not None else None))
        columns = ["strategy", "step", "loss", "seconds", "single"]
        return pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)


def collect(table: pd.DataFrame, results: Path, workloads: list[str] | None = None) -> Evidence:
    """Read what belongs to the rows of ``table`` (see summary.collect), or to those of these workloads alone."""
    runs = []
    rows = table if workloads is None else table[table.workload.isin(workloads)]
    for row in rows[rows.validation_loss.notna()].itertuples():
        folder = results / str(row.strategy) / str(row.workload)
        train = TrainReport.read(folder / "train.json", "train again")
        test = TestReport.read(folder / "test.json", "evaluate again") if row.status == "done" else None
        records = metrics.read(folder / metrics.NAME)
        steps, usage = ([record for record in records if record["kind"] == kind] for kind in ("train", "usage"))
        columns = ["step", "loss", "grad_norm", "seconds"]
        timeline = _timeline(folder / "timeline.json", train)
        runs.append(Shown(train, test, pd.DataFrame(steps, columns=columns), usage, timeline))
    return Evidence(table, runs, results, _jobs(results.resolve().parent))


def _timeline(path: Path, train: TrainReport) -> Timeline | None:
    """The run's timeline; a drawing is no reason to refuse a report."""
    try:
        timeline = Timeline.read(path, "train again")
    except UserError:
        return None
    return timeline if timeline.identity == train.identity else None


def _jobs(project: Path) -> pd.DataFrame:
    """rule, name, start, end of the workflow's jobs, in seconds since the first one began; empty without notes."""
    table = pd.DataFrame(map(asdict, notes.jobs(project)), columns=["rule", "name", "start", "end"])
    first = table.start.min() if len(table) else 0.0
    return table.assign(start=table.start - first, end=table.end - first)
