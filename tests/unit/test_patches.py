"""Patches of other projects' code: all in one package, each reviewed for the version that is installed and pinned."""

import importlib.metadata
import re
import threading
import time
from types import SimpleNamespace

import pytest
from snakemake.scheduling.job_scheduler import JobRateLimiter, JobScheduler
from snakemake.settings.types import MaxJobsPerTimespan

from helpers.common import ROOT
from shardlab.patches import REVIEWED, snakemake_core

PACKAGE = ROOT / "scripts/shardlab/patches"


def pinned():
    """Version by package, of all lock files."""
    text = "\n".join(path.read_text() for path in (ROOT / "envs").glob("*.txt"))
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))


@pytest.mark.parametrize("package", REVIEWED)
def test_patches_were_reviewed_for_the_version_that_is_used(package):
    versions = {importlib.metadata.version(package).partition("+")[0], pinned()[package]}
    assert versions == {REVIEWED[package]}, (
        f"review the patches of {package} in scripts/shardlab/patches: remove what its new version does by itself, and "
        "write that version into __init__.py"
    )


def test_one_look_at_the_ready_jobs_at_a_time(monkeypatch):
    """The patched scheduler: a timer only where the rate limit held jobs back, and one."""
    monkeypatch.setattr(JobScheduler, snakemake_core.METHOD, getattr(JobScheduler, snakemake_core.METHOD))
    for name in ("get_free_jobs", "register_jobs"):
        monkeypatch.setattr(JobRateLimiter, name, getattr(JobRateLimiter, name))
    snakemake_core.look_again_once()
    look_again = getattr(JobScheduler, snakemake_core.METHOD)
    looks, limiter = threading.Semaphore(0), JobRateLimiter(MaxJobsPerTimespan(5, "100ms"))
    workflow = SimpleNamespace(dag=SimpleNamespace(ready_jobs=["a job"]))
    scheduler = SimpleNamespace(job_rate_limiter=limiter, _open_jobs=looks, workflow=workflow)
    for started, held_back in ((4, False), (5, True)):
        assert limiter.get_free_jobs() == 5
        limiter.register_jobs(started)
        time.sleep(0.15)  # as starting them may take longer than the limit's time
        for _ in range(3):
            look_again(scheduler, 0.05)
        assert looks.acquire(timeout=60 if held_back else 0.2) == held_back
        assert not looks.acquire(timeout=0.2), "one timer for all three"
