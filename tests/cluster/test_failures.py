"""Errors on a cluster: one clear sentence, a nonzero status, and nothing lost."""

import json

import pytest

import cluster
from login import queue, snakemake, steps, training_job, until
from shardlab.records import metrics

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def too_long(base, make_copy):
    """A run that needs more than the two minutes that it asks for, under way."""
    with make_copy("too_long") as learner:
        config = ["recipe={epochs: 1000000}", "site_settings={warning: 60, slurm: {runtime: 2}}"]
        flags = ["--retries=0", "--preemptible-retries=0"]
        words = snakemake("results/ddp/mlp.done", flags=flags, config=config)
        yield learner, learner.start(*words)


@pytest.fixture(autouse=True)
def under_way(too_long):
    """Starts it before the first test."""


def test_wrong_account(trained):
    flags = ["--retries=0", "--preemptible-retries=0"]
    config = ["site_settings={slurm: {account: nobody}}"]
    done = trained.snakemake("results/ddp/mlp.done", flags=flags, config=config, check=False)
    assert done.returncode != 0, done.stdout[-3000:]
    assert not (trained.path / "results/ddp/mlp.done").exists()
    assert "Invalid account or account/partition combination specified" in done.stdout


def test_time_limit(too_long):
    """Not the first test in this file, so that the job's two minutes pass meanwhile."""
    learner, driver = too_long
    story = learner.path / "results/ddp/mlp/attempts.json"

    def started():
        records = metrics.read(story.with_name(metrics.NAME))
        return [record for record in records if record["kind"] == "attempt"]

    until("the second attempt", lambda: len(started()) > 1, 240)
    first, second = json.loads(story.read_text())["attempts"][:2]
    assert first["why"] == "stopped: time limit"
    assert first["slurm_job_id"] == second["slurm_job_id"], "it went back into the queue under its id"
    assert first["saved"] == first["reached"] > 0
    learner.run("scancel", first["slurm_job_id"])
    until("its end", lambda: not queue(first["slurm_job_id"]))
    driver.kill()  # it looks at a job that runs for long every three minutes only
    driver.wait()
    assert not (learner.path / "results/ddp/mlp.done").exists()
    assert steps(learner, "ddp/mlp") >= first["reached"]


@pytest.mark.long
def test_polling_goes_on_without_slurmdbd(trained):
    cluster.stop_slurmdbd()
    try:
        trained.snakemake("results/ddp/mlp.done", timeout=300)
    finally:
        cluster.start_slurmdbd()


@pytest.mark.long
def test_scancel_of_one_run_by_hand(learner):
    """The next call resumes from the newest checkpoint."""
    config = ["strategies=[single, ddp]", "workloads=[llama2]", "noise_floor_runs=0"]
    config += ["recipe={epochs: 100, max_steps: 200, checkpoint_interval_steps: 10}"]
    driver = learner.start(*snakemake("all", flags=["--retries=0", "--preemptible-retries=0"], config=config))
    job = training_job(learner, "ddp/llama2", driver)
    until("some steps", lambda: steps(learner, "ddp/llama2") > 20)
    learner.run("scancel", job)
    seen = learner.finish(driver, check=False)
    assert seen.returncode != 0
    assert "CANCELLED" in seen.stdout
    table = (learner.path / "results/summary.md").read_text()
    assert "- ddp x llama2: missing" in table
    learner.snakemake("all", config=config)
    assert "Not complete" not in (learner.path / "results/summary.md").read_text()
    report = learner.json("results/ddp/llama2/train.json")
    assert report["attempts"][0]["why"] == "stopped: SIGTERM"
    # Slurm's SIGTERM also ends the program that holds the image's file system, and saving at once may fail.
    assert report["attempts"][1]["from_step"] == report["attempts"][0]["saved"] >= 20
