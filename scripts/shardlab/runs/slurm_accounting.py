"""What Slurm accounted for the jobs of a project's folder: each start of each job, by stage and strategy."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardlab.runs import slurm
from shardlab.runs.slurm_reattach import name_of

LOGS = Path(".snakemake/slurm_logs")
"""Where the Slurm plugin leaves rule_RULE/WILDCARDS/JOB.log, wildcards joined by _: all of a folder's jobs."""
FIELDS = (
    *("JobID", "JobName", "State", "AllocTRES", "NNodes", "ElapsedRaw", "TimelimitRaw", "Start", "End"),
    *("CPUTimeRAW", "TotalCPU", "MaxRSS", "NTasks", "ConsumedEnergyRaw"),
)
PACK, PACK_JOB = "pack", "shardlab-pack"
"""Allocations that runs share (cli/pack.py): the stage that they count as, and the name of their jobs."""
AT_ONCE = 500
"""Jobs to ask for at a time."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
GOOD = ("COMPLETED", "RUNNING", "PENDING", "COMPLETING", "CONFIGURING", "SUSPENDED")


@dataclass(frozen=True)
class Start:
    """One start of a job; a requeued job has several."""

    job: str
    rule: str
    wildcards: str
    """Joined by _."""
    values: dict[str, str]
    """Fields of sacct."""
    steps: list[dict[str, str]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return float(self.values["ElapsedRaw"] or 0)

    @property
    def failed(self) -> bool:
        """Return whether it ended without doing its work."""
        return not self.values["State"].startswith(GOOD)

    @property
    def limit_seconds(self) -> float | None:
        """Requested time; None without a limit."""
        limit = self.values["TimelimitRaw"]
        return 60 * float(limit) if limit.isdigit() else None

    @property
    def nodes(self) -> int:
        return int(self.values["NNodes"] or 0)

    @property
    def span(self) -> tuple[float, float]:
        """Start and end, in seconds since 1970; a job that runs has no end."""
        begin, end = (self.values[key] for key in ("Start", "End"))
        return float(begin) if begin.isdigit() else float("inf"), float(end) if end.isdigit() else float("inf")

    def allocated(self, resource: str) -> int | None:
        """Return the allocated amount of gres/gpu, cpu or mem (bytes); None if it is not accounted for."""
        found = re.findall(rf"(?:^|,){resource}(:\w+)?=([\d.]+)([KMGT]?)", self.values["AllocTRES"])
        plain = [each for each in found if not each[0]] or found
        return int(sum(float(count) * UNITS[unit] for _, count, unit in plain)) if plain else None

    @property
    def cpu_seconds(self) -> tuple[float, float] | None:
        """CPU time used, and that of the allocated cores."""
        used, allocated = slurm.seconds(self.values["TotalCPU"]), float(self.values["CPUTimeRAW"] or 0)
        return None if used is None or not allocated else (used, allocated)

    @property
    def memory_bytes(self) -> tuple[float, float] | None:
        """Memory of the largest step, its largest task's times its tasks, and the allocated memory."""
        used = [_bytes(step["MaxRSS"]) * int(step["NTasks"] or 1) for step in self.steps if step["MaxRSS"]]
        allocated = self.allocated("mem")
        return (max(used), allocated) if used and allocated else None

    @property
    def joules(self) -> float | None:
        """Energy; None where the cluster does not measure it."""
        return float(value) if (value := self.values["ConsumedEnergyRaw"]).isdigit() and int(value) else None


def jobs(folder: Path) -> dict[str, tuple[str, str]]:
    """Return {job number: (rule, wildcards)} of the jobs that calls in a project's folder submitted."""
    found = {}
    for path in sorted((folder / LOGS).glob("*/**/*.log")):
        rule, *wildcards = path.relative_to(folder / LOGS).parts[:-1]
        if path.stem.isdigit():
            found[path.stem] = rule.removeprefix("rule_"), "_".join(wildcards)
    for path in (folder / "results/logs").glob("pack-*.log"):
        found[path.stem.removeprefix("pack-")] = PACK, ""
    return {number: job for number, job in found.items() if number.isdigit()}


def starts(folder: Path) -> list[Start] | None:
    """Return every start of these jobs; None if there are none, or accounting does not answer."""
    known = jobs(folder)
    if not known or shutil.which("sacct") is None:
        return None
    numbers, fields, text = sorted(known, key=int), ",".join(FIELDS), ""
    for first in range(0, len(numbers), AT_ONCE):
        listed = ",".join(numbers[first : first + AT_ONCE])
        words = ["sacct", "--duplicates", "--noheader", "--parsable2", f"--jobs={listed}", f"--format={fields}"]
        answer = slurm.answer_or_none(["env", "SLURM_TIME_FORMAT=%s", *words])
        if answer is None:
            return None
        text += answer
    # A number may belong to a job of another cluster's database, or of before its numbers began again.
    names = (name_of(folder), PACK_JOB)
    own = [start for start in parse(text, known) if start.values["JobName"] in names]
    return own or None


def parse(text: str, known: dict[str, tuple[str, str]]) -> Iterator[Start]:
    """Yield the starts of the ``known`` jobs in sacct's rows, where the steps of a start follow it."""
    start: Start | None = None
    for line in filter(None, text.splitlines()):
        row = dict(zip(FIELDS, line.split("|"), strict=True))
        job, _, step = row["JobID"].partition(".")
        if step:
            if start is not None and start.job == job:
                start.steps.append(row)
            continue
        if start is not None:
            yield start
        start = Start(job, *known[job], row) if job in known else None
    if start is not None:
        yield start


def _bytes(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)([KMGT]?)", text)
    return float(match[1]) * UNITS[match[2]] if match else 0.0
