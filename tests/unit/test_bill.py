"""The bill: what jobs used and lost, from sacct's rows, and from the runs' own times."""

import json
import os

import pytest

from helpers.common import tiny_run
from shardlab.records.reports import Attempt
from shardlab.report import bill
from shardlab.report.bill import Use, lost_seconds
from shardlab.runs import attempts, job_use, planned_hours, slurm, slurm_accounting
from shardlab.runs.slurm_reattach import name_of
from shardlab.runs.slurm_request import Request
from shardlab.settings.sites import Site

BEGAN = 1_700_000_000  # 2023-11-14T22:13:20Z
ROW = {"JobID": "7", "NNodes": "1", "TimelimitRaw": "60", "AllocTRES": "billing=4,cpu=4,gres/gpu=4,mem=600M,node=2"}
"""As sacct --parsable2 prints AllocTRES; `gres/gpu:TYPE` besides where the cluster accounts for types."""
SITE = Site(slurm={"gpus": "gres"})


def attempt(**values):
    fixed = {"number": 1, "call": "c", "host": "n1", "began": "2023-11-14T22:13:20Z", "slurm_job_id": "7"}
    return Attempt(**fixed | values)


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


def test_hours_by_stage_and_strategy_and_their_sum(accounted, tmp_path):
    """A training that was preempted once and an evaluation that failed; another project's job of that number."""
    results = accounted(
        {"7": "train/ddp_mlp", "8": "evaluate/ddp_mlp", "9": "init/mlp"},
        {"State": "PREEMPTED", "ElapsedRaw": "1800", "CPUTimeRAW": "7200", "TotalCPU": "00:30:00"},
        {"JobID": "7.batch", "State": "CANCELLED", "MaxRSS": "100M", "NTasks": "1"},
        {"JobID": "7.0", "State": "CANCELLED", "MaxRSS": "150M", "NTasks": "2"},
        {"State": "COMPLETED", "ElapsedRaw": "3600", "CPUTimeRAW": "14400", "TotalCPU": "01:30:00.500"},
        {"JobID": "8", "State": "FAILED", "ElapsedRaw": "360", "AllocTRES": "cpu=1,gres/gpu=1,gres/gpu:box=1"},
        {"JobID": "9", "JobName": "another", "State": "COMPLETED", "ElapsedRaw": "9999"},
    )
    uses, source = job_use.uses(SITE, [tiny_run("mlp", "ddp")], results)
    assert (tmp_path / "asked").read_text().split()[:4] == ["--duplicates", "--noheader", "--parsable2", "--jobs=7,8,9"]
    made = bill.bill(uses, {"ddp": 2.5}, source)
    assert made.columns == [
        *("stage", "strategy", "jobs", "planned GPU-hours", "requested", "used", "lost", "CPU", "memory")
    ]
    assert made.rows == [
        ["train", "ddp", "2", "2.5", "8", "6", "2", "33%", "50%"],
        ["evaluate", "ddp", "1", "", "1", "0.1", "0.1", "", ""],
        ["all", "", "3", "2.5", "9", "6.1", "2.1", "33%", "50%"],
    ]
    assert "From Slurm's accounting (sacct)" in made.notes[0]


def test_an_allocation_that_runs_share_lost_what_they_lost(accounted):
    """Four GPUs for an hour; of an attempt on two of them 100 s."""
    span = {"Start": f"{BEGAN}", "End": f"{BEGAN + 3600}"}
    row = {"JobName": "shardlab-pack", "State": "TIMEOUT", "ElapsedRaw": "3600"}
    results = accounted({}, row | span)
    (results / "logs").mkdir()
    (results / "logs/pack-7.log").touch()
    folder = results / "ddp/mlp"
    folder.mkdir(parents=True)
    begun = attempt(began="2023-11-14T23:11:40Z", ended="2023-11-15T00:00:00Z", why="lost: killed")
    (folder / "attempts.json").write_text(attempts.Attempts(numbers="n", attempts=[begun]).model_dump_json())
    run = tiny_run("mlp", "ddp")
    (use,), _ = job_use.uses(SITE, [run], results)
    assert (use.stage, use.devices, use.seconds) == ("pack", 4, 3600)
    assert use.lost_seconds == 100 * run.world_size / 4


def test_of_an_attempt_with_a_checkpoint_only_the_steps_after_it_are_lost(accounted):
    results = accounted(
        {"7": "train/ddp_mlp"},
        {"State": "TIMEOUT", "ElapsedRaw": "1200", "Start": f"{BEGAN}", "End": f"{BEGAN + 1200}"},
        {"State": "COMPLETED", "ElapsedRaw": "600", "Start": f"{BEGAN + 2000}", "End": f"{BEGAN + 2600}"},
    )
    first = {"first_step_at": "2023-11-14T22:16:40Z", "from_step": 0, "reached": 100, "saved": 80}
    ended = {"ended": "2023-11-14T22:33:20Z", "why": "lost: killed"}
    again = {"number": 2, "began": "2023-11-14T22:46:40Z", "ended": "2023-11-14T22:56:40Z", "why": "finished"}
    story = attempts.Attempts(numbers="n", attempts=[attempt(**first, **ended), attempt(**again)])
    folder = results / "ddp/mlp"
    folder.mkdir(parents=True)
    (folder / "attempts.json").write_text(story.model_dump_json())
    uses, _ = job_use.uses(SITE, [tiny_run("mlp", "ddp")], results)
    # 200 s of start-up, then 100 steps in 1,000 s, of which 20 are repeated.
    assert [use.lost_seconds for use in uses] == [200, 0]


@pytest.mark.parametrize(
    ("values", "lost"),
    [
        ({"ended": "x", "why": "finished"}, 0),
        ({"ended": None}, 0),
        ({"ended": "x", "why": "error: boom"}, 100),
        ({"ended": "x", "why": "stopped: SIGTERM", "from_step": 5, "reached": 9, "saved": 9}, 0),
        ({"ended": "x", "why": "lost: killed", "from_step": 5, "reached": 9, "saved": 5}, 100),
        ({"ended": "x", "why": "lost: killed", "from_step": 5, "reached": 9, "saved": 6}, 75),
    ],
)
def test_what_an_attempt_lost(values, lost):
    if values.get("from_step"):
        values["first_step_at"] = "2023-11-14T22:13:20Z"
    assert lost_seconds(attempt(**values), BEGAN + 100) == lost


def test_whole_nodes_and_energy_where_the_site_has_them(accounted):
    results = accounted(
        {"7": "train/single_mlp"},
        {"State": "COMPLETED", "ElapsedRaw": "3600", "NNodes": "2", "ConsumedEnergyRaw": "7200000"},
    )
    site = Site(slurm={"gpus": "gres", "billing": "node"})
    uses, source = job_use.uses(site, [tiny_run("mlp")], results)
    made = bill.bill(uses, {}, source)
    assert dict(zip(made.columns, made.rows[-1], strict=True)) | {"node-hours": "2", "energy (kWh)": "2"} == dict(
        zip(made.columns, made.rows[-1], strict=True)
    )


def test_a_cluster_that_does_not_account_for_gpus_or_has_none(accounted):
    row = {"State": "COMPLETED", "ElapsedRaw": "3600", "AllocTRES": "cpu=4,mem=1G,node=1"}
    results = accounted({"7": "train/ddp_mlp"}, row)
    run = tiny_run("mlp", "ddp")
    (use,), _ = job_use.uses(SITE, [run], results)
    assert use.devices == run.world_size
    (use,), source = job_use.uses(Site(slurm={}), [run], results)
    assert (use.devices, source.unit) == (4, "core")


def test_without_accounting_the_runs_own_times_count(tmp_path, monkeypatch):
    """Also of an attempt whose end only the next one recorded, by its log; of other stages, finished jobs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    run = tiny_run("mlp", "ddp")
    folder = tmp_path / "results/ddp/mlp"
    (folder / "attempts").mkdir(parents=True)
    lost = attempt(ended="2023-12-24T00:00:00Z", why="lost: it died", slurm_job_id=None)
    done = attempt(number=2, ended="2023-11-14T22:15:00Z", why="finished", slurm_job_id=None)
    story = attempts.Attempts(numbers="n", attempts=[lost, done])
    (folder / "attempts.json").write_text(story.model_dump_json())
    log = folder / "attempts/001.log"
    log.touch()
    os.utime(log, (BEGAN + 50, BEGAN + 50))
    metadata = tmp_path / ".snakemake/metadata"
    metadata.mkdir(parents=True)
    record = {"rule": "evaluate", "starttime": 5.0, "endtime": 15.0, "job_hash": 1}
    for name in ("cmVzdWx0cy9kZHAvbWxwL3Rlc3QuanNvbg==", "cmVzdWx0cy9kZHAvbWxwL290aGVy"):
        (metadata / name).write_text(json.dumps(record | {"starttime": record["starttime"] + 1e-4}))
    (metadata / "cmVzdWx0cy9pbml0L21scC5qc29u").write_text(json.dumps(record | {"rule": "init"}))  # Slurm refused it
    for name in ("test.json", "other"):
        (folder / name).touch()
    uses, source = job_use.uses(Site(), [run], tmp_path / "results")
    ranks = run.world_size
    assert uses == [
        Use("train", "ddp", ranks, 1, 50, 50),
        Use("train", "ddp", ranks, 1, 100, 0),
        Use("evaluate", "ddp", 1, 1, pytest.approx(10, abs=1e-3)),
    ]
    assert source.unit == "device"
    assert "because Slurm's accounting says nothing" in job_use.uses(SITE, [run], tmp_path / "results")[1].text


def test_the_bill_as_markdown_and_what_no_plan_says():
    made = bill.bill([Use("train", "ddp", 2, 1, 1800)], {"ddp": None, "fsdp": 1.0}, bill.Source("device", "Said so."))
    text = bill.markdown(made).splitlines()
    assert text[4:7] == [
        "| train | ddp | 1 | unknown |  | 1 | 0 |",
        "| train | fsdp | 0 | 1 |  | 0 | 0 |",
        "| all |  | 1 | unknown |  | 1 | 0 |",
    ]
    assert text[8] == "Said so."


def test_what_a_call_requests_and_plans_in_one_sentence():
    requests = [Request("train", {"nodes": 2, "gres": "gpu:4", "runtime": 30})] * 3
    assert planned_hours.sentence(requests, [1.0, None], "Trainings") == (
        "Trainings request at most 12.0 GPU-hours and 3.0 node-hours (the time limits of 3 jobs); planned for "
        "1 training: 1 device-hours, without 1 training of unknown length."
    )
    assert planned_hours.sentence(requests[:1], [None], "Jobs").endswith("limits of 1 job); no times are planned.")
    assert planned_hours.sentence([], [None], "Jobs") == ""


def test_times_of_sacct():
    texts = ("1-01:00:01", "01:00:01", "00:30.500", "UNLIMITED")
    assert [slurm.seconds(text) for text in texts] == [90001, 3601, 30.5, None]
