"""Times of the workflow's jobs, from the metadata that Snakemake keeps about their output files."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean


@dataclass(frozen=True)
class Job:
    """A finished job whose files exist."""

    rule: str
    name: str
    """Its first output file found."""
    start: float
    end: float
    """Both in seconds since 1970."""


def jobs(project: Path) -> list[Job]:
    """Return the jobs of a project's folder, by start; unreadable metadata is skipped."""
    folder = project / ".snakemake/metadata"
    jobs: dict[tuple[str, float], Job] = {}
    # Each output has a record of its own, with the same hash of the job and a start that is some microseconds later.
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            output = base64.b64decode(path.name).decode()
            job = Job(str(record["rule"]), output, float(record["starttime"]), float(record["endtime"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if not (project / output).exists():  # there is a record also of a job that failed, or that Slurm refused
            continue
        jobs.setdefault((job.rule, record.get("job_hash", job.start)), job)
    return sorted(jobs.values(), key=lambda job: job.start)


def seconds_by_rule(project: Path) -> dict[str, float]:
    """Return the mean seconds per job of each rule."""
    took: dict[str, list[float]] = {}
    for job in jobs(project):
        took.setdefault(job.rule, []).append(job.end - job.start)
    return {rule: mean(seconds) for rule, seconds in took.items()}
