"""The default recipes on the embedded data learn: the test loss ends clearly below the untrained one."""

import pytest

from helpers.common import save_initial
from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.settings import load, resolve
from shardlab.train import loop
from shardlab.train.evaluation import evaluate_whole

FRACTIONS = {"mlp": 0.6, "mnist": 0.3, "xsum": 0.9, "vit": 0.95, "llama2": 0.9, "moe": 0.9, "instruct": 0.9}
"""Workload: largest part of the untrained test loss that is left."""


@pytest.mark.long  # of two workloads also tests/workflow/test_matrix.py
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", FRACTIONS)
def test_each_workload_learns(workload, tmp_path):
    """Under `single`, as `make run` trains it."""
    run, data, initial = resolve.run(load.config({}), "single", workload), tmp_path / "data", tmp_path / "initial"
    store.write(data, run.data, *encode(run.data, data_sets.read(run.data, tmp_path)))
    save_initial(run, initial)
    loop.train(run, data, initial, tmp_path, {})
    before, after = (evaluate_whole(run, data, path).loss for path in (initial, tmp_path / "model.safetensors"))
    assert after < FRACTIONS[workload] * before
