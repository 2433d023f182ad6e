"""Remedies are calls that can be typed."""

from shardlab.errors import PROFILE, remedy


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
