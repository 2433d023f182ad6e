"""What a call of Snakemake says at its end: its verdict; a dry run, how much its jobs would request."""

import atexit
from pathlib import Path
from typing import Any

from shardlab.runs import slurm_request
from shardlab.runs.slurm_request import Request
from shardlab.settings.sites import Slurm


def announce(workflow: Any, site: Slurm | None) -> None:
    """Print that when this process ends, but the verdict of a call that runs jobs, of which the Snakefile knows whether
    they succeed.
    """
    atexit.register(lambda: say(workflow, site))


def say(workflow: Any, site: Slurm | None) -> None:
    """Print what the jobs of a dry run request; of a call that has nothing to do, its verdict."""
    if (dag := workflow.dag) is None:
        return
    # A dry run counts its jobs as local, and as finished.
    due = list(dag.needrun_jobs(exclude_finished=False))
    if not workflow.dryrun:
        if not due:
            say_verdict(dag)
        return
    requests = [Request(job.rule.name, job.resources) for job in due if job.resources.get("tasks_per_node")]
    tries = 1 + max((job.restart_times for job in due), default=0)
    if text := slurm_request.sentence(requests, "These jobs", site, tries):
        print(text)


def say_verdict(dag: Any) -> None:
    """Print the table and the verdict, if the targets ask for them, and the file to open."""
    said, rules = Path("results/logs/summarize.log"), {job.rule.name for job in dag.jobs}
    if "summarize" in rules and said.exists():
        page = "Open results/report.html" if "report" in rules else "The same as a page: results/summary.md"
        print("", said.read_text(encoding="utf-8").strip(), "", page, sep="\n")
