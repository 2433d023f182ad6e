"""The bill: what jobs requested and used, from sacct's rows."""

import pytest

from helpers.common import program
from shardlab.errors import UserError
from shardlab.runs import bill, slurm_request
from shardlab.runs.slurm_reattach import name_of
from shardlab.runs.slurm_request import Request
from shardlab.settings import load
from shardlab.settings.sites import Slurm

ROW = {
    "JobID": "7",
    "Partition": "whole",
    "QOS": "normal",
    "NNodes": "1",
    "TimelimitRaw": "60",
    "AllocTRES": "billing=4,cpu=4,gres/gpu=4,mem=600M,node=2",
}
"""As sacct --parsable2 prints AllocTRES; `gres/gpu:TYPE` besides where the cluster accounts for types."""


QUEUES = {
    "parts": {"partition": "parts", "billing": {"factor": 0.25, "unit": "node-hours"}},
    "whole": {"partition": "whole", "qos": "normal", "billing": {"per": "node"}},
}


def test_hours_by_stage_and_their_sum(monkeypatch, tmp_path):
    """A training that was preempted once and an evaluation that failed, in queues that charge whole nodes and parts;
    another project's job of that number; an allocation that runs share.
    """
    logs = [f"{bill.LOGS}/rule_{job}.log" for job in ("train/ddp_mlp/7", "evaluate/ddp_mlp/8", "init/mlp/9")]
    for log in (*logs, "results/logs/pack-10.log"):
        (tmp_path / log).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / log).touch()
    parts = {"Partition": "parts", "AllocTRES": "cpu=1,gres/gpu=1,gres/gpu:box=1"}
    jobs = [
        {"State": "PREEMPTED", "ElapsedRaw": "1800"},
        {"State": "COMPLETED", "ElapsedRaw": "3600"},
        {"JobID": "8", "State": "FAILED", "ElapsedRaw": "360"} | parts,
        {"JobID": "9", "JobName": "another", "State": "COMPLETED", "ElapsedRaw": "9999"},
        {"JobID": "10", "JobName": "shardlab-pack", "State": "TIMEOUT", "ElapsedRaw": "3600"},
    ]
    every = [ROW | {"JobName": name_of(tmp_path)} | job for job in jobs]
    text = "\n".join("|".join(row.get(name, "") for name in bill.FIELDS) for row in every)
    program(tmp_path / "bin/sacct", f"cat <<'END'\n{text}\nEND")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    config = load.config({"site": "test", "site_settings": {"slurm": {"queues": QUEUES}}})
    lines = [line for line in bill.bill(config, tmp_path).splitlines() if line.startswith("|")]
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert heads == ["stage", "jobs", "requested GPU-hours", "used", "failed", "charged node-hours"]
    assert rows == [
        ["train", "2", "8", "6", "2", "1.5"],
        ["evaluate", "1", "1", "0.1", "0.1", "0.025"],
        ["pack", "1", "4", "4", "4", "1"],
        ["all", "4", "13", "10.1", "6.1", "2.52"],
    ]
    with pytest.raises(UserError, match="name the one of the jobs"):
        bill.bill(load.config({}), tmp_path)


def test_what_a_call_requests_in_one_sentence():
    """In the unit of the queue that Slurm is asked for."""
    asked = {"nodes": 2, "gres": "gpu:4", "runtime": 30, "slurm_partition": "parts"}
    requests = [Request("train", asked)] * 2 + [Request("train", asked | {"slurm_partition": "whole", "qos": "normal"})]
    site = Slurm(gpus="gres", queues=QUEUES)
    assert slurm_request.sentence(requests, "Trainings", site, tries=2) == (
        "Trainings request at most 12.0 GPU-hours, charged as 3.0 node-hours: the time limits of 3 jobs; "
        "6.0 node-hours if every job is tried 2 times."
    )
