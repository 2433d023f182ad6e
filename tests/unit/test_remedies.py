"""Remedies are calls that can be typed; stages are rules."""

import re
from typing import get_args

import pytest

from shardlab.errors import PROFILE, remedy
from shardlab.files import ROOT
from shardlab.runs import stages
from shardlab.settings import sites


@pytest.mark.parametrize(
    ("environment", "profile"),
    [
        ({}, "workflow/profiles/local"),
        ({"SLURM_JOB_ID": "7"}, "slurm"),
        ({PROFILE: "workflow/profiles/local", "SLURM_JOB_ID": "7"}, "workflow/profiles/local"),
    ],
)
def test_a_remedy_has_the_profile_of_the_current_call(monkeypatch, environment, profile):
    for name in (PROFILE, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = remedy("make it", "results/ddp/mlp/plan.json", "-f")
    words = f"--profile {profile} -f results/ddp/mlp/plan.json"
    assert text == f"make it with: snakemake {words}, and the --config of your call"


def test_a_rule_of_each_stage_s_name_exists():
    files = (ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk"))
    rules = {name for path in files for name in re.findall(r"^rule (\w+):", path.read_text(), re.MULTILINE)}
    assert {*stages.STAGES, *get_args(sites.Stage)} <= rules
