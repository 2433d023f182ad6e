"""The default recipes on the embedded data learn: the test loss ends clearly below the untrained one."""

import pytest
from group import Group

from helpers.common import save_initial
from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.settings import load, resolve
from shardlab.train.evaluation import evaluate_whole

pytestmark = pytest.mark.long  # of two workloads also tests/workflow/test_matrix.py
FRACTIONS = {"mlp": 0.6, "mnist": 0.3, "xsum": 0.9, "vit": 0.95, "llama2": 0.9, "moe": 0.9, "instruct": 0.9}
"""Workload: largest part of the untrained test loss that is left."""


@pytest.fixture(scope="module")
def trained(server, tmp_path_factory):
    """Group with the run of every workload under `single`, as `make run` trains it."""
    group = Group(server, tmp_path_factory.mktemp("learning"), tmp_path_factory.mktemp("data"))
    for workload in FRACTIONS:
        run = resolve.run(load.config({}), "single", workload)
        store.write(group.data / workload, run.data, *encode(run.data, data_sets.read(run.data, group.data)))
        group.add(workload, run)
    group.start(1)
    return group


@pytest.mark.parametrize("workload", FRACTIONS)
def test_each_workload_learns(trained, workload, tmp_path):
    run = resolve.run(load.config({}), "single", workload)
    save_initial(run, tmp_path / "untrained")
    weights = (tmp_path / "untrained", trained.folder / workload / "model.safetensors")
    before, after = (evaluate_whole(run, trained.data / workload, path).loss for path in weights)
    assert after < FRACTIONS[workload] * before
