"""What Slurm accounted for the jobs of a project's folder: each start of each job, by stage and strategy."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardlab.runs import slurm
from shardlab.runs.slurm_reattach import name_of

LOGS = Path(".snakemake/slurm_logs")
"""Where the Slurm plugin leaves rule_RULE/WILDCARDS/JOB.log, wildcards joined by _: all of a folder's jobs."""
FIELDS = ("JobID", "JobName", "State", "Partition", "QOS", "AllocTRES", "NNodes", "ElapsedRaw", "TimelimitRaw")
PACK, PACK_JOB = "pack", "shardlab-pack"
"""Allocations that runs share (cli/pack.py): the stage that they count as, and the name of their jobs."""
AT_ONCE = 500
"""Jobs to ask for at a time."""
GOOD = ("COMPLETED", *slurm.LIVE)


@dataclass(frozen=True)
class Start:
    """One start of a job; a requeued job has several."""

    job: str
    rule: str
    wildcards: str
    """Joined by _."""
    values: dict[str, str]
    """Fields of sacct."""

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

    def allocated(self, resource: str) -> int | None:
        """Return the allocated number of gres/gpu or cpu; None if it is not accounted for."""
        found = re.findall(rf"(?:^|,){resource}(:\w+)?=(\d+)", self.values["AllocTRES"])
        plain = [each for each in found if not each[0]] or found
        return sum(int(count) for _, count in plain) if plain else None


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
        words = [
            "sacct",
            "--duplicates",
            "--allocations",
            "--noheader",
            "--parsable2",
            f"--jobs={listed}",
            f"--format={fields}",
        ]
        answer = slurm.answer_or_none(words)
        if answer is None:
            return None
        text += answer
    # A number may belong to a job of another cluster's database, or of before its numbers began again.
    names = (name_of(folder), PACK_JOB)
    own = [start for start in parse(text, known) if start.values["JobName"] in names]
    return own or None


def parse(text: str, known: dict[str, tuple[str, str]]) -> Iterator[Start]:
    """Yield the starts of the ``known`` jobs in sacct's rows."""
    for line in filter(None, text.splitlines()):
        row = dict(zip(FIELDS, line.split("|"), strict=True))
        if (job := row["JobID"]) in known:
            yield Start(job, *known[job], row)
