"""Remedies are calls that can be typed; stages are rules."""

import re
from typing import get_args

from shardlab.errors import PROFILE, remedy
from shardlab.files import ROOT
from shardlab.runs import stages
from shardlab.settings import sites


def test_a_remedy_has_the_profile_of_the_current_call(monkeypatch):
    for name in (PROFILE, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)

    def text():
        return remedy("make it", "results/ddp/mlp/plan.json", "-f").removesuffix(", and the --config of your call")

    assert text() == "make it with: snakemake --profile workflow/profiles/local -f results/ddp/mlp/plan.json"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert " --profile slurm " in text()
    monkeypatch.setenv(PROFILE, "workflow/profiles/local")
    assert " --profile workflow/profiles/local " in text()


def test_a_rule_of_each_stage_s_name_exists():
    files = (ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk"))
    rules = {name for path in files for name in re.findall(r"^rule (\w+):", path.read_text(), re.MULTILINE)}
    assert {*stages.STAGES, *get_args(sites.Stage)} <= rules
