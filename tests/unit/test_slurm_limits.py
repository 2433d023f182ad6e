"""Consequences of a cluster's limits and preemption for a training."""

import pytest

from shardlab.runs.slurm_limits import means
from shardlab.settings.sites import Site

BATCH = {"PartitionName": "batch", "MaxTime": "02:00:00", "PreemptMode": "REQUEUE", "GraceTime": "10"}
CONFIG = {"JobRequeue": "1", "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "KillWait": "30 sec"}


@pytest.mark.parametrize(
    ("slurm", "partition", "config", "words"),
    [
        ({}, {}, {}, ["requests 60 min of at most 120; 120 s before", "is requeued", "warned 10 s before"]),
        (
            {},
            {"GraceTime": "0"},
            {},
            ["killed without notice", "recipe.checkpoint_interval_minutes", "then it is requeued"],
        ),
        ({}, {"PreemptMode": "CANCEL"}, {}, ["(CANCEL)", "then it ends, and Snakemake submits it again"]),
        ({}, {"PreemptMode": "SUSPEND"}, {}, ["suspended and continues later"]),
        ({}, {}, {"PreemptType": "preempt/none"}, ["preemption: none on batch"]),
        ({"requeue": False}, {}, {}, ["it saves and ends, and Snakemake submits it again"]),
        ({}, {}, {"JobRequeue": "0"}, ["it saves and ends, and Snakemake submits it again"]),
        ({}, {"MaxTime": "UNLIMITED"}, {}, ["without a partition limit"]),
        ({}, {}, {"KillWait": "25 sec"}, ["does not end after 25 s", "stop_seconds, now 25"]),
    ],
)
def test_what_it_means(slurm, partition, config, words):
    said, wrong = means(Site(slurm=slurm), 60, BATCH | partition, CONFIG | config)
    assert all(word in " ".join(said) for word in words), said
    assert wrong == []
    assert ("scancel" in " ".join(said)) == ("KillWait" in config)


def test_a_time_limit_that_the_partition_does_not_give():
    _, wrong = means(Site(slurm={}), 121, BATCH, CONFIG)
    assert wrong == ["partition batch limits jobs to 120 min, but slurm.runtime is 121; lower it to 120"]
