"""What the rules know of a call: its runs, the files that they read, what their jobs request."""

import json

import pytest

from helpers.common import ROOT
from shardlab.errors import UserError
from shardlab.settings import pretrained
from shardlab.workflow import rule_files
from shardlab.workflow.call_runs import CallRuns

TWO = {"workloads": ["mlp", "mnist"], "strategies": ["single", "ddp", "fsdp"]}
ONE_JOB = ["--target-jobs", "train:strategy=ddp,workload=mlp", "--mode", "remote"]


def call(values=TWO, *arguments, overwritten=()):
    return CallRuns(dict(values), [*arguments], overwritten)


@pytest.mark.parametrize(
    ("arguments", "overwritten", "strategies"),
    [
        (["all"], (), {"single", "ddp", "fsdp"}),
        (["results/fsdp/mlp.done"], (), {"fsdp"}),
        (ONE_JOB, (), set()),
        (ONE_JOB, ("strategies",), {"single", "ddp", "fsdp"}),
    ],
)
def test_initial_weights_know_the_strategies_that_the_call_trains_from_them(arguments, overwritten, strategies):
    ours = call(TWO, *arguments, overwritten=overwritten)
    assert bool(ours.runs) == (arguments is not ONE_JOB), "the job of one run resolves that alone"
    assert json.loads(ours.strategies_of("mlp", [])).keys() == strategies


def test_what_a_proof_refuses_is_not_trained_but_proven_again_later(tmp_path, monkeypatch):
    values = {"workloads": ["hf_small"], "strategies": ["single", "tp", "ddp"]}
    before = call(values)
    (tmp_path / "config").symlink_to(ROOT / "config")
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "results/init/hf_small"
    place.mkdir(parents=True)
    (place / "proofs.json").write_text(
        json.dumps({"of": pretrained.of_proofs(before.runs[0]), "refused": {"tp": "a step of tp differs"}})
    )
    after = call(values)
    assert [run.strategy for run in after.runs] == ["single", "ddp"]
    assert after.to_prove("hf_small") == before.to_prove("hf_small")
    assert json.loads(before.strategies_of("hf_small", [])).keys() == {"single", "ddp"}
    with pytest.raises(UserError, match="a step of tp differs"):
        call(values, "results/tp/hf_small.done")


def test_weights_are_compared_where_there_is_a_single_and_no_sweep():
    def results(values):
        return [path for path in rule_files.RuleFiles(call(values)).every_result() if path.endswith("weights.json")]

    runs = [f"{strategy}/{workload}" for strategy in ("ddp", "fsdp") for workload in ("mlp", "mnist")]
    assert results(TWO) == [f"results/{run}/weights.json" for run in runs]
    assert results(TWO | {"strategies": ["ddp", "fsdp"]}) == []
    assert results(TWO | {"sweep": {"seed": [1, 2]}}) == []
