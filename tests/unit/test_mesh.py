"""Rules about mesh axes, which follow from what an axis splits; where stages lie; the devices of one process."""

import pytest

from helpers.common import tiny_run
from shardlab.settings import load, resolve
from shardlab.settings.mesh import ParallelDims
from shardlab.settings.pipeline_schedules import SCHEDULES, boundaries


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


def test_stages_lie_in_a_line_a_loop_or_a_v():
    lying = {
        "1F1B": [[0], [1], [2]],
        "Interleaved1F1B": [[0, 3], [1, 4], [2, 5]],
        "ZBVZeroBubble": [[0, 5], [1, 4], [2, 3]],
    }
    for name, expected in lying.items():
        schedule = SCHEDULES[name]
        assert [schedule.stages(3, rank) for rank in range(3)] == expected
        assert all(schedule.rank_of(3, stage) == rank for rank, stages in enumerate(expected) for stage in stages)


@pytest.mark.parametrize(("segments", "stages"), [(4, 4), (14, 4), (6, 2), (7, 3)])
def test_every_piece_is_in_one_stage_and_the_stages_are_even(segments, stages):
    where = boundaries(segments, stages)
    assert [segment for start, stop in where for segment in range(start, stop)] == list(range(segments))
    sizes = [stop - start for start, stop in where]
    assert max(sizes) - min(sizes) <= 1


def test_one_process_takes_the_devices_of_a_node():
    run = resolve.run(load.config({"ranks_per_node": 4}), "mp", "llama2")
    assert (run.world_size, run.devices_per_rank, run.devices_per_node) == (1, 4, 4)


def test_ep_groups_the_data_parallel_ranks_once_more(site, strategy):
    def experts(**degrees):
        strategy("mine", **degrees)
        mesh = resolve.run(load.config({"ranks_per_node": 8}), "mine", "moe").mesh
        return mesh.size, mesh.expert_replicas, mesh.expert_shards, mesh.parts("experts")

    assert experts(dp_shard=-1, ep=2) == (8, 1, 4, 2)
    assert experts(dp_shard=-1, cp=2, ep=-1) == (8, 1, 1, 8)
    assert experts(dp_shard=-1, tp=2, ep=2) == (8, 1, 2, 2)
    assert experts(dp_replicate=2, dp_shard=-1, ep=2) == (8, 2, 2, 2)
    assert experts(dp_replicate=-1, dp_shard=2, ep=4) == (8, 2, 1, 4), "more than have different shards"
