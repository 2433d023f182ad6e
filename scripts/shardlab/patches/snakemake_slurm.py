"""Snakemake's Slurm plugin: an executor that follows the live jobs of an earlier call instead of submitting them again.

All calls with one name give their Slurm jobs that name, by which the plugin asks for their states. Which job is live
and when a lost one has ended is decided by the caller (`runs/slurm_reattach.py`).

Besides, it asks nothing of accounting before it submits, and does not wait for it for ever. Snakemake issues 4084 and
3438, issue 109 of the plugin.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from shardlab.errors import UserError

PLUGIN = "snakemake_executor_plugin_slurm"


def install(
    name: str,
    find: Callable[[str, Any], str | None],
    settle: Callable[[dict[str, str], set[str]], dict[str, str]],
    patience: float,
) -> None:
    """Change the plugin, where Snakemake has loaded it.

    ``find(name, job)`` gives the live Slurm job of that name that does a Snakemake job, or None;
    ``settle(states, followed)`` the states of jobs by which the plugin goes. ``patience``: seconds to wait for a query.
    """
    plugin = sys.modules.get(PLUGIN)
    if plugin is None or getattr(plugin.Executor, "shardlab", False):
        return
    executor: Any = plugin.Executor
    executor.shardlab = True
    begin, submit, look = executor.__post_init__, executor.run_job, executor.check_active_jobs
    query = plugin.query_job_status
    followed: set[str] = set()

    def post_init(self: Any, test_mode: bool = False) -> None:
        begin(self, test_mode)
        self.run_uuid = name

    def run_job(self: Any, job: Any) -> None:
        try:
            found = find(self.run_uuid, job)
        except UserError as error:
            self._report_job_error_threadsafe(plugin.SubmittedJobInfo(job), str(error))
            return
        if found is None:
            submit(self, job)
            return
        self.logger.info(f"Job {job.jobid} is Slurm job {found} of an earlier call; following it.")
        folder = self.slurm_logdir / f"rule_{job.rule.name}" / plugin.get_job_wildcards(job)
        log = {"slurm_logfile": folder / f"{found}.log"}
        self._report_job_submission_threadsafe(plugin.SubmittedJobInfo(job, external_jobid=found, aux=log))

    async def check_active_jobs(self: Any, active_jobs: list[Any]) -> AsyncIterator[Any]:
        followed.clear()
        followed.update(job.external_jobid for job in active_jobs)
        async for job in look(self, active_jobs):
            yield job

    async def query_job_status(command: str, logger: Any) -> Any:
        states, seconds = await query(command, logger)
        return (states if states is None else settle(states, followed)), seconds

    executor.__post_init__, executor.run_job = post_init, run_job
    executor.check_active_jobs = check_active_jobs
    vars(plugin).update(
        query_job_status=query_job_status,
        # sbatch itself refuses an account that is not the user's, and knows the default one; sacctmgr and sacct may be
        # missing, or wait for slurmdbd.
        validate_account=lambda account, logger: account,
        get_account=lambda logger: None,
        subprocess=SimpleNamespace(**vars(subprocess) | {"check_output": limited(patience)}),
    )


def limited(patience: float) -> Callable[..., str]:
    """Return ``subprocess.check_output`` for queries: one that does not end has failed, as the plugin expects it."""

    def check_output(words: Any, **options: Any) -> str:
        try:
            return str(subprocess.check_output(words, **{"timeout": patience} | options))
        except subprocess.TimeoutExpired as error:
            raise subprocess.CalledProcessError(1, words, stderr=str(error)) from None

    return check_output
