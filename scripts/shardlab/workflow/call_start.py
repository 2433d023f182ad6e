"""The start of a call of Snakemake: checks, patches, and what a killed call left."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from snakemake.exceptions import WorkflowError

from shardlab.errors import PROFILE, UserError
from shardlab.patches import snakemake_core
from shardlab.runs import commands, forkserver, progress, signals, slurm, slurm_reattach, snakemake_lock
from shardlab.settings.config import Config
from shardlab.settings.sites import Site
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
    snakemake_core.without_default_rate_limit()
    progress.install()


def note_done(arguments: list[str], folder: Path, runs: Iterable[Run], frozen: Callable[[], Mapping[str, Run]]) -> None:
    """Record which runs are done as this call begins, if it runs jobs; see ``snakemake_lock.note_done``. Bring their
    ``frozen`` settings up to date.
    """
    if snakemake_lock.runs_jobs(arguments):
        for name, run in frozen().items():
            snakemake_lock.bring_up_to_date(run, folder / name)
        snakemake_lock.note_done(folder, runs)


def check_slurm(arguments: list[str], config: Config, site: Site) -> None:
    """Check that Slurm jobs can start, if this call submits any.

    Raises:
        UserError: they cannot.
    """
    if not call_checks.submits_to_slurm(arguments):
        return
    if problem := slurm.path_obstacle(sys.executable):
        raise UserError(f"{problem}.")
    if "--slurm-array-jobs" in " ".join(arguments):
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
    starts_here = executor == "local" and runtime.srun is None
    if starts_here and runtime.device == "cpu" and not site.container.enabled:
        forkserver.start(folder, commands.environment(runtime), runtime.environment_clear)
