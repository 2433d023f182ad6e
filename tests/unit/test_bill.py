"""The bill: what jobs requested and used, from sacct's rows."""

import os

import pytest

from helpers.common import tiny_run
from shardlab.report import bill
from shardlab.runs import job_use, planned_hours, slurm_accounting
from shardlab.runs.slurm_reattach import name_of
from shardlab.runs.slurm_request import Request

ROW = {"JobID": "7", "NNodes": "1", "TimelimitRaw": "60", "AllocTRES": "billing=4,cpu=4,gres/gpu=4,mem=600M,node=2"}
"""As sacct --parsable2 prints AllocTRES; `gres/gpu:TYPE` besides where the cluster accounts for types."""


def line(**values):
    return "|".join((ROW | values).get(name, "") for name in slurm_accounting.FIELDS)


@pytest.fixture
def accounted(monkeypatch, tmp_path):
    """Function that gives a project's folder jobs, {number: rule/wildcards}, and sacct these rows."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def make(jobs, *rows):
        for number, place in jobs.items():
            log = tmp_path / slurm_accounting.LOGS / f"rule_{place}" / f"{number}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
        sacct = tmp_path / "bin/sacct"
        text = "\n".join(line(**{"JobName": name_of(tmp_path)} | row) for row in rows)
        sacct.write_text(f"#!/bin/sh\necho \"$*\" > {tmp_path}/asked\ncat <<'END'\n{text}\nEND\n")
        sacct.chmod(0o755)
        (tmp_path / "results").mkdir(exist_ok=True)
        return tmp_path / "results"

    return make


def billed(results, resource="gres/gpu", **options):
    return bill.bill(job_use.uses([tiny_run("mlp", "ddp")], results, resource), "GPU", **{"by_node": False} | options)


def test_hours_by_stage_and_strategy_and_their_sum(accounted, tmp_path):
    """A training that was preempted once and an evaluation that failed; another project's job of that number."""
    results = accounted(
        {"7": "train/ddp_mlp", "8": "evaluate/ddp_mlp", "9": "init/mlp"},
        {"State": "PREEMPTED", "ElapsedRaw": "1800"},
        {"State": "COMPLETED", "ElapsedRaw": "3600"},
        {"JobID": "8", "State": "FAILED", "ElapsedRaw": "360", "AllocTRES": "cpu=1,gres/gpu=1,gres/gpu:box=1"},
        {"JobID": "9", "JobName": "another", "State": "COMPLETED", "ElapsedRaw": "9999"},
    )
    made = billed(results, by_node=True)
    assert "--allocations --noheader --parsable2 --jobs=7,8,9" in (tmp_path / "asked").read_text()
    assert made.rows == [
        ["train", "ddp", "2", "8", "6", "2", "1.5"],
        ["evaluate", "ddp", "1", "1", "0.1", "0.1", "0.1"],
        ["all", "", "3", "9", "6.1", "2.1", "1.6"],
    ]
    assert "| train | ddp | 2 | 8 | 6 | 2 | 1.5 |" in bill.markdown(made)


def test_an_allocation_that_runs_share_is_one_job(accounted):
    results = accounted({}, {"JobName": "shardlab-pack", "State": "TIMEOUT", "ElapsedRaw": "3600"})
    (results / "logs").mkdir()
    (results / "logs/pack-7.log").touch()
    assert billed(results).rows[0] == ["pack", "", "1", "4", "4", "4"]


def test_a_cluster_that_does_not_account_for_gpus_or_has_none_or_accounts_for_nothing(accounted, monkeypatch):
    row = {"State": "COMPLETED", "ElapsedRaw": "3600", "AllocTRES": "cpu=3,mem=1G,node=1"}
    results = accounted({"7": "train/ddp_mlp"}, row)
    assert billed(results).rows[0][4] == str(tiny_run("mlp", "ddp").world_size)
    assert billed(results, "cpu").rows[0][4] == "3"
    monkeypatch.setenv("PATH", "")
    assert bill.NONE in bill.markdown(billed(results))


def test_what_a_call_requests_and_plans_in_one_sentence():
    requests = [Request("train", {"nodes": 2, "gres": "gpu:4", "runtime": 30})] * 3
    assert planned_hours.sentence(requests, [1.0, None], "Trainings") == (
        "Trainings request at most 12.0 GPU-hours and 3.0 node-hours (the time limits of 3 jobs); planned for "
        "1 training: 1 device-hours, without 1 training of unknown length."
    )
