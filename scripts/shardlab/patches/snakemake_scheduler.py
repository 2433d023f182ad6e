"""Patch of Snakemake's scheduler: no reevaluation of the ready jobs if nothing has changed.

With a rate limit, which is the default (100 jobs a second), each pass of ``JobScheduler.schedule`` starts a timer for
another pass. Every finished job adds an endless chain of them: after n jobs there are n passes a second, and each asks
the file system for all inputs of all ready jobs. A pass is needed only where the limit held jobs back; one is enough.
Snakemake issues 3955, 3744 and 4240.
"""

import sys
import threading
from typing import Any

METHOD = "_schedule_reevalutation"
"""Name as misspelled in Snakemake."""


def install() -> None:
    """Patch the scheduler, if this Snakemake has the method."""
    from snakemake.scheduling.job_scheduler import JobRateLimiter, JobScheduler

    begin = getattr(JobScheduler, METHOD, None)
    if begin is None:
        print(f"warning: Snakemake's scheduler has no {METHOD}; use the version in envs/workflow.txt.", file=sys.stderr)
    elif begin is not once:
        setattr(JobScheduler, METHOD, once)
        _note_what_is_left(JobRateLimiter)


def _note_what_is_left(limiter: Any) -> None:
    """Make a rate limiter record the number of jobs that it would still have let through in the last pass."""
    free, register = limiter.get_free_jobs, limiter.register_jobs

    def get_free_jobs(self: Any) -> int:
        self.left = free(self)
        return int(self.left)

    def register_jobs(self: Any, count: int) -> None:
        register(self, count)
        self.left -= count

    limiter.get_free_jobs, limiter.register_jobs = get_free_jobs, register_jobs


def once(scheduler: Any, delay: float) -> None:
    """Replace the method: start a timer if the rate limit held jobs back, unless one is running.

    Without ready jobs the caller waits for something else (input from a queue), perhaps before it ever used the limit.
    """
    limiter = scheduler.job_rate_limiter
    held_back = limiter is None or not scheduler.workflow.dag.ready_jobs or limiter.left <= 0
    pending = getattr(scheduler, "pending_reevaluation", None)
    if not held_back or (pending is not None and not pending.finished.is_set()):
        return

    def again() -> None:
        timer.finished.set()
        scheduler._open_jobs.release()

    scheduler.pending_reevaluation = timer = threading.Timer(delay, again)
    timer.daemon = True
    timer.start()
