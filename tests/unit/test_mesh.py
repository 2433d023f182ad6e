"""Rules about mesh axes: each follows from what an axis splits."""

import pytest

from helpers.common import tiny_run
from shardlab.settings.mesh import ParallelDims


@pytest.mark.parametrize(
    ("strategy", "ranks", "figures"),
    [
        ("ddp", 2, (2, 1, 1, 1, ("dp_replicate",))),
        ("hsdp", 4, (4, 1, 2, 1, ("dp_replicate",))),
        ("fsdp_tp", 4, (2, 2, 2, 1, ())),
        ("fsdp_cp", 4, (2, 1, 4, 1, ())),
        ("fsdp_tp_pp", 8, (2, 2, 2, 2, ())),
        ("ep", 4, (4, 1, 1, 1, ("dp_replicate",))),
    ],
)
def test_figures_of_a_mesh(strategy, ranks, figures):
    """Parts of a batch, ranks that repeat others, shards of the states, stages, axes that reduce whole gradients."""
    mesh = tiny_run("moe", strategy, ranks).mesh
    assert (mesh.data_size, mesh.copies, mesh.shards, mesh.stages, mesh.replica_axes) == figures


def test_ranks_of_an_axis_lie_a_stride_apart():
    dims = ParallelDims({"dp_replicate": 2, "pp": 3, "dp_shard": 5, "tp": 7})
    assert [dims.stride(axis) for axis in dims.root] == [105, 35, 7, 1]
    coordinates = {"dp_replicate": 1, "dp_shard": 3}
    assert dims.first_rank(dims.data_rank(coordinates)) == 105 + 3 * 7
