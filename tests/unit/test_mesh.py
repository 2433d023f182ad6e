"""Rules about mesh axes: each follows from what an axis splits, whatever its name."""

from types import SimpleNamespace

import pytest
import theory

from helpers.common import build, tiny_run
from shardlab.plan import representatives
from shardlab.report import families
from shardlab.settings import mesh
from shardlab.settings.mesh import AXES, Axis, ParallelDims


@pytest.fixture
def run_with(monkeypatch):
    """Function that returns an FSDP run of two shards, with an axis ``new`` of degree 2 between dp_shard and tp."""
    fsdp = tiny_run("llama2", "fsdp", 4)

    def run(*splits):
        axes = {}
        for name, axis in AXES.items():
            if name == "tp":
                axes["new"] = Axis(splits)
            axes[name] = axis
        monkeypatch.setattr(mesh, "AXES", axes)
        return fsdp.model_copy(update={"mesh": ParallelDims({"dp_shard": 2, "new": 2})})

    return run


def sent(run):
    return theory.replica_traffic(run, build(run).to("meta"), 1)


def held(run):
    return theory.state_bytes(SimpleNamespace(settings=run.model_dump(), parameters=2**10))


def figures(run):
    return run.mesh.data_size, run.mesh.copies, run.mesh.shards, run.mesh.stages


def test_an_axis_that_splits_nothing_repeats_the_others(run_with):
    fsdp, run = tiny_run("llama2", "fsdp", 2), run_with()
    assert (figures(fsdp), figures(run)) == ((2, 1, 2, 1), (2, 2, 2, 1))
    assert (sent(run), held(run)) == (sent(fsdp), held(fsdp))


def test_ranks_that_split_sequences_and_states_read_the_same_samples_and_shard_over_all(run_with):
    fsdp, run = tiny_run("llama2", "fsdp", 4), run_with("sequence", "states")
    assert figures(run) == (2, 1, 4, 1)
    assert (sent(run), held(run)) == (sent(fsdp), held(fsdp))
    assert representatives.sends_activations(run)
    assert [run.mesh.data_rank({"dp_shard": shard, "new": 1}) for shard in range(2)] == [0, 1]
    assert [run.mesh.first_rank(part) for part in range(2)] == [0, 2]
    assert run.mesh.techniques == ("fsdp",)


@pytest.mark.parametrize("splits", [("samples",), ("sequence",)])
def test_whole_states_are_reduced_over_the_ranks_that_split_a_batch(run_with, splits):
    run = run_with(*splits)
    assert run.mesh.replica_axes == ("new",)
    assert run.mesh.copies == 1
    hsdp = run.model_copy(update={"mesh": ParallelDims({"dp_replicate": 2, "dp_shard": 2})})
    assert (sent(run), held(run)) == (sent(hsdp), held(hsdp))


def test_a_strategy_of_one_new_axis_is_in_no_family(run_with):
    for splits, family in ((("experts",), families.OTHER), (("samples",), families.DATA_PARALLEL)):
        run = run_with(*splits)
        run = run.model_copy(update={"mesh": ParallelDims({"new": 4})})
        assert families.family(SimpleNamespace(settings=run.model_dump())) == family


def test_ranks_of_an_axis_lie_a_stride_apart():
    dims = ParallelDims({"dp_replicate": 2, "pp": 3, "dp_shard": 5, "tp": 7})
    assert [dims.stride(axis) for axis in dims.root] == [105, 35, 7, 1]
    coordinates = {"dp_replicate": 1, "dp_shard": 3}
    assert dims.first_rank(dims.data_rank(coordinates)) == 105 + 3 * 7
