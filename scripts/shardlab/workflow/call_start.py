"""The start of a call of Snakemake: checks, patches, and what a killed call left."""

import atexit
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from shardlab.errors import PROFILE, UserError
from shardlab.patches import snakemake_core
from shardlab.records import plan
from shardlab.runs import commands, forkserver, planned_hours, progress, signals, slurm, slurm_reattach, snakemake_lock
from shardlab.runs.slurm_request import Request
from shardlab.settings.config import Config
from shardlab.settings.sites import Site, Slurm
from shardlab.settings.types import Run
from shardlab.workflow import call_checks


@contextmanager
def as_workflow_error() -> Iterator[None]:
    """Turn a UserError into Snakemake's own error, where Snakemake builds its graph and runs jobs."""
    try:
        yield
    except UserError as error:
        raise WorkflowError(str(error)) from None


@contextmanager
def as_exit() -> Iterator[None]:
    """End the call with the sentence of a UserError while Snakemake reads the rules, which would add a traceback."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


def begin(arguments: list[str], folder: Path) -> None:
    """Prepare this process for the call with these ``arguments``, before Snakemake reads the configuration.

    Raises:
        UserError: the call cannot write into the ``folder``.
    """
    snakemake_core.respect_no_color()
    # Jobs end with this process.
    signals.announce_driver()
    # Jobs inherit it, for the calls that their error messages name.
    if profile := call_checks.profile(arguments):
        os.environ.setdefault(PROFILE, profile)
    if job := slurm.job_id():
        os.environ.setdefault(slurm.DRIVER, job)
    call_checks.check_folder(folder)
    # Also in a dry run.
    snakemake_core.ancient_inputs_decide_nothing()


def take_over(arguments: list[str], folder: Path) -> None:
    """Let a call that runs jobs go on where another one in the ``folder`` ended, or was killed, without --unlock.

    Raises:
        UserError: the file system has no locks.
    """
    if not snakemake_lock.runs_jobs(arguments):
        return
    snakemake_lock.take(folder)
    slurm_reattach.install(folder)
    snakemake_core.look_again_once()
    progress.install()


def note_done(arguments: list[str], folder: Path, runs: Iterable[Run], frozen: Callable[[], Mapping[str, Run]]) -> None:
    """Record which runs are done as this call begins, if it runs jobs; see ``snakemake_lock.note_done``. Bring their
    ``frozen`` settings up to date.

    Raises:
        UserError: a run.json is a folder.
    """
    if snakemake_lock.runs_jobs(arguments):
        for name, run in frozen().items():
            snakemake_lock.bring_up_to_date(run, folder / name)
        snakemake_lock.note_done(folder, runs)


def check_executor(executor: str, settings: Any, config: Config, site: Site) -> None:
    """Check before the first job that Slurm jobs can start, if this call submits any.

    ``settings``: of the executor plugin.

    Raises:
        UserError: they cannot.
    """
    if executor != "slurm":
        return
    if problem := slurm.path_obstacle(sys.executable):
        raise UserError(f"{problem}.")
    if getattr(settings, "array_jobs", None):
        raise UserError(
            "--slurm-array-jobs cannot be used here: a training that is stopped goes back into the queue under its own "
            "job's id, which tasks of an array do not have; leave it out."
        )
    if site.slurm is None:
        raise UserError(
            f"site {config.site} has no `slurm:` section, and this call submits to Slurm; choose your cluster with "
            "--config site=NAME (a file in config/sites), or run --profile workflow/profiles/local."
        )


def start_forkserver(executor: str, site: Site, folder: Path) -> None:
    """Start a fork server before the first job if jobs run on this machine's CPU, so that imports happen once."""
    runtime = site.place()
    starts_here = executor == "local" and runtime.launcher == "local"
    if starts_here and runtime.device == "cpu" and not site.container.enabled:
        forkserver.start(folder, commands.environment(runtime), runtime.environment_clear)


def announce_cost(workflow: Any, runs: list[Run], site: Slurm | None) -> None:
    """Print what the jobs of a call request, and its trainings are planned to take, as a dry run ends."""
    atexit.register(lambda: _say_cost(workflow, runs, site))


def _say_cost(workflow: Any, runs: list[Run], site: Slurm | None) -> None:
    if not workflow.dryrun or (dag := workflow.dag) is None:
        return
    # A dry run counts its jobs as local, and as finished.
    due = list(dag.needrun_jobs(exclude_finished=False))
    requests = [Request(job.rule.name, job.resources) for job in due if job.resources.get("tasks_per_node")]
    trained = {(job.wildcards.strategy, job.wildcards.workload) for job in due if job.rule.name == "train"}
    results = Path("results")
    planned = [
        planned_hours.hours(run, plan.find(run, *plan.places(results, run)))
        for run in runs
        if (run.strategy, run.workload) in trained
    ]
    tries = 1 + max((job.restart_times for job in due), default=0)
    if text := planned_hours.sentence(requests, planned, "These jobs", site, tries):
        print(text)
