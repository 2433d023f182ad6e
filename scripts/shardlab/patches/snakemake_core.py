"""Snakemake: which jobs run, how many are started at a time, and which handler prints its log."""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

LOGGER = "snakemake.logging"


class _Following(dict[Any, dict[Any, Any]]):
    """Job: the jobs that run because it does, with its files that they read."""

    def __init__(self, depending: Mapping[Any, Mapping[Any, Any]]) -> None:
        super().__init__()
        self.depending = depending

    def __missing__(self, job: Any) -> dict[Any, Any]:
        followers = self.depending[job].items()
        self[job] = found = {one: files for one, files in followers if not all(file.is_ancient for file in files)}
        return found


def ancient_inputs_decide_nothing() -> None:
    """A job that follows another one's output as ``ancient`` is checked itself, and does not run again because it has
    such an input, or no longer has it (the image, with config key ``container``).

    Snakemake checks a job's parameters, inputs and code only if no job before it runs, as it then runs anyway. It skips
    the check also where the job before is followed by ``ancient`` inputs alone, because of which nothing runs, unless
    they are missing. Without the patch, an edit that changes both jobs runs the first alone, and those after both with
    the old file of the second; and an image that is made again trains all runs again.
    """
    from snakemake.dag import DAG
    from snakemake.persistence import PersistenceBase

    update, listed = DAG.update_needrun, PersistenceBase._input
    if hasattr(update, "__wrapped__"):
        return

    @wraps(update)
    async def update_needrun(self: Any, *arguments: Any, **options: Any) -> None:
        depending, self.depending = self.depending, _Following(self.depending)
        try:
            await update(self, *arguments, **options)
        finally:
            self.depending = depending

    def _input(self: Any, job: Any) -> list[str]:
        return [file for file in listed(self, job) if not getattr(file, "is_ancient", False)]

    DAG.update_needrun, PersistenceBase._input = update_needrun, _input


def without_default_rate_limit() -> None:
    """Start as many jobs as may run, unless the call has a --max-jobs-per-timespan of its own.

    With the default limit (100 jobs a second), each pass of ``JobScheduler.schedule`` starts a timer for another pass.
    Every finished job adds an endless chain of them: after n jobs there are n passes a second, and each asks the file
    system for all inputs of all ready jobs. Snakemake issues 3955, 3744 and 4240.
    """
    from snakemake.scheduling import job_scheduler

    limiter = job_scheduler.JobRateLimiter
    job_scheduler.JobRateLimiter = lambda limit: (
        None if (limit.max_jobs, limit.timespan) == (100, 1) else limiter(limit)
    )


def respect_no_color() -> None:
    """Turn off the colors of Snakemake's own lines if NO_COLOR is set (no-color.org), which it does not read."""
    for handler in logging.getLogger(LOGGER).handlers:
        if os.environ.get("NO_COLOR") and hasattr(handler, "nocolor"):
            handler.nocolor = True


def replace_stream_handlers(make: Callable[[Any, logging.Handler], logging.Handler]) -> None:
    """Replace each handler that prints by what ``make(stream, handler)`` returns: a logger plugin would have to be an
    installed package, which this project is not.
    """
    logger = logging.getLogger(LOGGER)
    for old in [handler for handler in logger.handlers if handler.name == "DefaultStreamHandler"]:
        logger.removeHandler(old)
        logger.addHandler(make(getattr(old, "stream", sys.stderr), old))
