"""Configuration to runs: degrees multiplied out, the meshes that follow, and one sentence for what does not fit."""

import pytest

from shardlab.errors import UserError
from shardlab.settings import deepspeed, load, resolve

pytestmark = pytest.mark.usefixtures("site")


def resolved(strategy="ddp", workload="llama2", **config):
    return resolve.run(load.config(config), strategy, workload)


def test_every_strategy_and_workload_is_a_run_or_a_reason():
    strategies = load.own_strategies()
    config = load.config({"strategies": strategies})
    planned, left_out = resolve.matrix(config)
    assert len(planned) + len(left_out) == len(config.workloads) * len(strategies)
    segments = "mlp can be split into 2 segments, and pp_zbv needs 4; use fewer ranks, or more layers."
    assert left_out["pp_zbv", "mlp"] == segments
    assert "no sequence to split" in left_out["tp_sp", "mnist"]
    limited = {"pp_interleaved", "pp_zbv", "tp_sp", "tp_loss", "fsdp_tp_sp"}
    limited |= {"cp", "cp_ulysses", "cp_ring", "fsdp_cp", "fsdp_tp_cp", "fsdp_pp_cp"}
    limited |= {"ep", "fsdp_ep", "fsdp_tp_ep", "fsdp_ep_cp", "pp_ep"}
    assert {strategy for strategy, _ in left_out} <= limited
    assert left_out["ep", "mlp"].startswith("workload mlp has no experts for ep to split; ")
    assert {workload for strategy, workload in left_out if strategy == "cp"} == {"mlp", "mnist"}


def test_deepspeed_json_may_not_say_what_the_recipe_says(strategy, tmp_path, monkeypatch):
    monkeypatch.setattr(deepspeed, "ROOT", tmp_path)
    strategy("mine", engine="deepspeed", config="mine.json")
    (tmp_path / "mine.json").write_text('{"train_batch_size": 8}')
    with pytest.raises(UserError, match="`train_batch_size` comes from the workload's recipe"):
        resolved("mine")


@pytest.mark.parametrize(("size", "data"), [("small", "embedded"), ("source", "hub")])
def test_the_matrix_resolves_with_every_size_and_data(size, data):
    planned, _ = resolve.matrix(load.config({"size": size, "data": data}))
    assert len(planned) == 62
    assert {run.data.hub is not None for run in planned if run.workload != "mlp"} == {data == "hub"}


def test_workloads_may_not_share_a_data_set_with_different_options(monkeypatch):
    good = load.workload
    vit = good("vit")
    size = vit.sizes["small"].model_copy(update={"data": {"rows": 9}})
    monkeypatch.setattr(
        load,
        "workload",
        lambda name: vit.model_copy(update={"sizes": {"small": size}}) if name == "vit" else good(name),
    )
    with pytest.raises(
        UserError,
        match=r"vit.yaml: .* prepares a data set digits, with nothing as options.rows, and this one with 9",
    ):
        resolve.matrix(load.config({}))


def test_initial_weights_are_those_of_any_number_of_steps():
    """Else another call's recipe would draw them again, and so train finished runs."""

    def initial(**recipe):
        return resolve.initialization(resolve.run(load.config({"recipe": recipe}), "single", "mlp"))

    longer = {"max_steps": 7, "optimizer": {"learning_rate": 0.5}, "checkpoint_interval_steps": 3}
    assert initial(**longer) == initial()
    assert initial(dtype="float64") != initial()
