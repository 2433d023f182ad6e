"""Sweeps: variants by name, what varies what, the table over seeds."""

import pandas as pd
import pytest

from helpers.reports import finished
from shardlab.records import plan
from shardlab.report import summary, sweep_table
from shardlab.settings import load, resolve

MNIST = {"workloads": ["mnist"], "strategies": ["ddp"]}
RATES = {"learning_rate": [0.01, 0.1], "seed": [1, 2, 3]}


def planned(**config):
    return resolve.matrix(load.config(MNIST | config))


def test_a_product_and_a_table():
    runs, _ = planned(sweep=RATES)
    assert [run.workload for run in runs[:2]] == ["mnist@learning_rate=0.01@seed=1", "mnist@learning_rate=0.01@seed=2"]
    assert [(run.recipe.optimizer.learning_rate, run.seed, run.data.seed) for run in runs[2:4]] == [
        (0.01, 3, 1),
        (0.1, 1, 1),
    ]
    rows = [{"global_batch_size": 32, "learning_rate": 0.1}, {"global_batch_size": 64, "seed": 2}]
    runs, _ = planned(sweep=rows)
    names = ["mnist@global_batch_size=32@learning_rate=0.1", "mnist@global_batch_size=64@seed=2"]
    assert [run.workload for run in runs] == names


def test_every_key_goes_from_the_configuration_to_a_name_and_back():
    given = {
        "betas": [[0.9, 0.95]],
        "optimizer.name": ["adamw"],
        "max_grad_norm": [None],
        "keep_best": [True],
        "dtype": ["float64"],
        "weight_decay": ["1e-7"],
    }
    runs, _ = planned(sweep=given)
    assert [run.workload for run in runs] == [
        "mnist@betas=0.9:0.95@dtype=float64@keep_best=true@max_grad_norm=null@optimizer.name=adamw@weight_decay=1e-07"
    ]
    assert resolve.run(load.config(MNIST), "ddp", runs[0].workload) == runs[0]
    assert (runs[0].recipe.dtype, runs[0].recipe.optimizer.betas) == ("float64", (0.9, 0.95))


def test_strategies_vary_by_what_means_something_to_them():
    swept = {"n_microbatches": [4], "tp": [2, 3]}
    runs, left_out = planned(workloads=["llama2"], strategies=["single", "fsdp_tp", "pp", "zero2"], sweep=swept)
    assert [run.strategy for run in runs] == ["single", "fsdp_tp@tp=2", "pp@n_microbatches=4@tp=2", "zero2"]
    assert runs[2].options.n_microbatches == 4
    assert left_out.keys() == {("fsdp_tp@tp=3", "llama2"), ("pp@n_microbatches=4@tp=3", "llama2")}


def test_variants_share_initial_weights_and_a_size_has_its_own_data():
    assert resolve.weights_of("mnist@dtype=float64@learning_rate=0.1@seed=2") == "mnist@dtype=float64@seed=2"
    runs, _ = planned(sweep={"size": ["small", "source"]})
    assert [run.data.name for run in runs] == ["digits_small", "digits_source"]
    first, second, other = (
        planned(sweep={key: [value]})[0][0] for key, value in (("seed", 2), ("seed", 3), ("global_batch_size", 32))
    )
    assert plan.cost(first) == plan.cost(second) != plan.cost(other)


def test_mean_deviation_and_the_best(tmp_path):
    config = load.config(MNIST | {"strategies": ["single", "ddp"], "sweep": RATES})
    runs, _ = resolve.matrix(config)
    for number, run in enumerate(runs[:-1]):
        finished(tmp_path, run, loss=2.0 + number)
    table = summary.judged(config, tmp_path)[0].astype({"validation_loss": "Float64"})
    # Every report has validation loss 3.0; the first strategy's are replaced.
    table.loc[table.strategy == "single", "validation_loss"] = [3.0, 4.0, 5.0, 2.0, 3.0, 2.5]
    found = sweep_table.table(table)
    assert sweep_table.keys(found) == ["learning_rate"]
    assert found.learning_rate.tolist() == ["0.01", "0.1"] * 2
    assert found.done.tolist() == [3, 3, 3, 2]
    assert found.validation_mean.tolist() == [4.0, 2.5, 3.0, 3.0]
    assert found.validation_std.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert found.test_mean.tolist()[:2] == [3.0, 6.0]
    assert found.best.tolist() == [False, True, True, True]
    easier = table.assign(workload=table.workload.str.replace("mnist", "mlp"), validation_loss=1.0)
    assert sweep_table.table(pd.concat([table, easier])).best.tolist() == [*found.best, True, True, True, True]
