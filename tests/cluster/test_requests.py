"""Many runs in one allocation."""

import re
from itertools import combinations

import pytest

from login import RECIPE, gpus, now, queue, sacct, until
from shardlab.runs.attempts import history

pytestmark = pytest.mark.timeout(2400)
CONFIG = ["site=test", RECIPE, "noise_floor_runs=0", "workloads=[mlp]", "strategies=[single,ddp,fsdp]"]


@pytest.fixture(scope="module")
def packed(make_copy):
    """The project after a call inside one allocation, when the job was submitted, and its id."""
    with make_copy("packed") as learner:
        begin = now()
        said = learner.run("python", "scripts/shardlab", "pack", "--config", *CONFIG, "--", "all").stdout
        job = re.search(r"Job (\d+) runs everything", said)[1]
        until("the end of the packed job", lambda: not queue(job), seconds=600)
        yield learner, begin, job


def log(learner, job):
    return (learner.path / f"results/logs/pack-{job}.log").read_text()


def test_all_runs_share_one_job_and_are_equal(packed):
    learner, begin, job = packed
    assert "other runs are equal to single" in (learner.path / "results/summary.md").read_text(), log(learner, job)
    assert gpus(since=begin) == {job: 4}
    assert {row["State"] for row in sacct("State", since=begin)} == {"COMPLETED"}, log(learner, job)


def test_runs_train_at_the_same_time(packed):
    learner, *_ = packed
    names = ("single", "ddp", "fsdp")
    attempts = [attempt for name in names for attempt in history(learner.path / f"results/{name}/mlp")]
    assert len(attempts) == 3
    pairs = combinations(attempts, 2)
    assert any(one.began < other.ended and other.began < one.ended for one, other in pairs), attempts
