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
from shardlab.patches import snakemake_scheduler
from shardlab.patches.reviewed import PATCHES

PACKAGE = ROOT / "scripts/shardlab/patches"


def pinned():
    """Version by package, of all lock files."""
    text = "\n".join(path.read_text() for path in (ROOT / "envs").glob("*.txt"))
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_patch_was_reviewed_for_the_version_that_is_used(patch):
    versions = {
        "installed": importlib.metadata.version(patch.package).partition("+")[0],
        "pinned in envs/": pinned()[patch.package],
    }
    for where, version in versions.items():
        assert version == patch.version, (
            f"{patch.package} {version} is {where}, but {patch.name} was reviewed for {patch.version}: {patch.reason} "
            f"({', '.join(patch.issues) or 'no upstream issue known'}); review it: if {patch.ends}, remove the patch, "
            "else write the new version into scripts/shardlab/patches/reviewed.py."
        )


def test_each_patch_has_its_function_and_each_file_its_patches():
    names = [patch.name for patch in PATCHES]
    assert sorted(set(names)) == sorted(names)
    files = {name.partition(".")[0] for name in names}
    assert files == {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "reviewed"}
    for name in names:
        file, _, function = name.partition(".")
        assert re.search(rf"^(def|class) {function}\b", (PACKAGE / f"{file}.py").read_text(), re.MULTILINE), name


def test_one_look_at_the_ready_jobs_at_a_time(monkeypatch):
    """The patched scheduler: a timer only where the rate limit held jobs back, and one."""
    for name in ("get_free_jobs", "register_jobs"):
        monkeypatch.setattr(JobRateLimiter, name, getattr(JobRateLimiter, name))
    monkeypatch.setattr(JobScheduler, snakemake_scheduler.METHOD, getattr(JobScheduler, snakemake_scheduler.METHOD))
    snakemake_scheduler.install()
    look_again = getattr(JobScheduler, snakemake_scheduler.METHOD)
    assert look_again is snakemake_scheduler.once
    looks, ready = threading.Semaphore(0), ["a job"]
    limiter = JobRateLimiter(MaxJobsPerTimespan(5, "100ms"))
    dag = SimpleNamespace(ready_jobs=[])
    scheduler = SimpleNamespace(job_rate_limiter=limiter, _open_jobs=looks, workflow=SimpleNamespace(dag=dag))
    look_again(scheduler, 0.05)
    assert looks.acquire(timeout=60), "something else is waited for, and the limit was never asked"
    dag.ready_jobs = ready
    assert limiter.get_free_jobs() == 5
    limiter.register_jobs(4)
    look_again(scheduler, 0.05)
    assert not looks.acquire(timeout=0.2), "no job was held back"
    assert limiter.get_free_jobs() == 5
    limiter.register_jobs(5)
    time.sleep(0.15)  # as starting them may take longer than the limit's time
    for _ in range(3):
        look_again(scheduler, 0.05)
    assert looks.acquire(timeout=60)
    assert not looks.acquire(timeout=0.2), "one timer for all three"
    look_again(scheduler, 0.05)
    assert looks.acquire(timeout=60), "the next one"
    limiter.get_free_jobs()
    ready.clear()
    look_again(scheduler, 0.05)
    assert looks.acquire(timeout=60), "something else is waited for"
    monkeypatch.delattr(JobScheduler, snakemake_scheduler.METHOD)
    snakemake_scheduler.install()
