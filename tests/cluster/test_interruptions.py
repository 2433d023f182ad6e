"""One run through a cluster's interruptions: each time it resumes where it was."""

import os
import signal
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

import cluster
from login import now, queue, sacct, snakemake, steps, training_job, until
from shardlab.runs.slurm_reattach import name_of

pytestmark = pytest.mark.timeout(900)
RUN = "fsdp/llama2"
STEPS = 400
CONFIG = ["nodes=2", "ranks_per_node=1", f"recipe={{epochs: 100, max_steps: {STEPS}, checkpoint_interval_steps: 50}}"]
TARGET = f"results/{RUN}.done"
FOLLOWED = "of an earlier call; following it"


@pytest.fixture(scope="module")
def struck(make_copy):
    """The run that all of this happens to, its driver, and its job."""
    with make_copy("struck") as learner:
        since = now()
        driver = learner.start(*snakemake(TARGET, config=CONFIG))
        job = training_job(learner, RUN, driver)
        until("the first steps", lambda: steps(learner, RUN) > 20)
        yield learner, driver, job, since


def attempts(learner):
    return learner.json(f"results/{RUN}/attempts.json")["attempts"]


def words_of(place):
    try:
        return (place / "cmdline").read_bytes()
    except OSError:
        return b""


def goes_on(learner, number, seconds=120):
    """Wait until the attempt of that number takes new steps."""
    before = attempts(learner)[number - 2]
    until("the next attempt", lambda: len(attempts(learner)) >= number, seconds)
    until("its steps", lambda: steps(learner, RUN) > (attempts(learner)[number - 2]["reached"] or 0) + 5, seconds)
    return before


def test_the_warning_before_a_time_limit(struck):
    learner, _, job, _ = struck
    for place in Path("/proc").glob("[0-9]*"):
        if b"scripts/shardlab\0launch\0train" in words_of(place) and (place / "cwd").readlink() == learner.path:
            os.kill(int(place.name), signal.SIGUSR1)
    goes_on(learner, 2)
    first, second = attempts(learner)
    assert first["why"] == "stopped: SIGUSR1"
    assert first["slurm_job_id"] == second["slurm_job_id"] == job


def test_the_driver_is_killed_and_the_link_is_cut(struck):
    """SIGKILL of Snakemake on the login node; then five seconds without a network between the nodes."""
    learner, driver, job, _ = struck
    driver.kill()
    driver.wait()
    for state in ("down", "up"):
        subprocess.run(["ip", "link", "set", "shardlab-n2", state], check=True)
        if state == "down":
            subprocess.run(["sleep", "5"], check=True)
    before = steps(learner, RUN)
    until("more steps", lambda: steps(learner, RUN) > before + 5)
    assert queue(job) == "RUNNING"
    assert len(attempts(learner)) == 2, "a link that is cut shorter than the timeout costs nothing"


def test_preemption(struck):
    learner, *_ = struck
    urgent = ["--partition=urgent", "--exclusive", "--nodes=2", "--account=teaching", "--output=/dev/null"]
    learner.run("sbatch", *urgent, "--wrap=sleep 2")
    goes_on(learner, 3, 240)  # Slurm may hold a requeued job for two minutes
    assert attempts(learner)[1]["why"] == "stopped: SIGTERM"


@pytest.mark.long
def test_a_node_is_lost_while_a_new_call_follows_and_another_waits(struck):
    """The first driver died long ago. All processes of one node end; both calls see the run finish."""
    learner, _, job, since = struck
    calls = [learner.start(*snakemake(TARGET, config=CONFIG)) for _ in range(2)]
    logs = learner.path / ".snakemake/log"
    follows = f"{job} {FOLLOWED}"
    until("one to follow it", lambda: any(follows in log.read_text() for log in logs.iterdir()))
    for process in subprocess.run(["ip", "netns", "pids", "n2"], text=True, capture_output=True).stdout.split():
        os.kill(int(process), signal.SIGKILL)
    cluster.wait("Slurm to see it", lambda: "n2" in cluster.output("sinfo", "-h", "-N", "-t", "down", "-o", "%N"), 60)
    cluster.node("n2")
    for call in calls:
        learner.finish(call)
    assert steps(learner, RUN) == STEPS
    rows = [row for row in sacct("JobName", "Start", "End", since=since) if row["JobName"] == name_of(learner.path)]
    rows.sort(key=lambda row: row["Start"])
    assert all(one["End"] <= other["Start"] for one, other in pairwise(rows)), "two jobs at once for one run"


def test_ends_equal(struck):
    """Bitwise equal to the same run without interruptions."""
    learner, *_ = struck
    learner.snakemake(TARGET, config=CONFIG)  # follows its job, if that has not ended
    report = learner.json(f"results/{RUN}/train.json")
    learner.snakemake(TARGET, config=CONFIG, flags=["--force"])
    alone = learner.json(f"results/{RUN}/train.json")
    assert alone["weights"] == report["weights"]
    assert len(alone["attempts"]) == 1, "a forced run begins anew"
