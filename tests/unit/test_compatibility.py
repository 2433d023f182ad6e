"""How runs are spread: stages of pipelines, and the devices of one process."""

import re

import pytest

from helpers.common import build
from shardlab import models
from shardlab.errors import Unsupported, UserError
from shardlab.settings import load, resolve
from shardlab.settings.pipeline_schedules import SCHEDULES, boundaries
from shardlab.settings.types import Strategy


def resolved(monkeypatch, strategy, workload="llama2", **config):
    monkeypatch.setattr(load, "strategy", lambda name: Strategy.model_validate(strategy))
    return resolve.run(load.config(config), "mine", workload)


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


def test_one_process_takes_the_devices_of_a_node(monkeypatch):
    run = resolved(monkeypatch, {"single_process": "mp"}, ranks_per_node=4, nodes=1)
    assert (run.world_size, run.devices_per_rank, run.devices_per_node) == (1, 4, 4)


def test_every_workload_s_file_describes_its_model_and_segments_have_each_weight_once():
    for workload in load.names("workloads"):
        run = resolve.run(load.config({}), "single", workload)
        if run.model.folder:
            assert run.model.segments == 0
            continue
        chain = build(run)
        models.check_plan(run.model, chain)
        owned = [name for segment in chain.segments() for name in segment.names]
        for name in models.state(chain):
            assert sum(name == own or name.startswith(f"{own}.") for own in owned) == 1, name


@pytest.mark.parametrize(
    ("strategy", "ranks", "sentence"),
    [
        ({"dp_shard": -1, "tp": 2, "ep": 4}, 4, "ep 4 does not divide the 2 data-parallel ranks"),
        ({"dp_shard": -1, "ep": 2}, 3, "the 3 data-parallel ranks (3 with different shards); ep can be 1, 3."),
        ({"dp_shard": -1, "ep": -1}, 3, "ep 3 does not divide experts 8 of workload moe; ep can be 1, 2, 4, 8."),
        ({"dp_shard": -1, "ep": 2}, 6, "and the 3 ranks with the same ones divide neither their number nor hidden"),
    ],
)
def test_experts_that_ranks_cannot_divide_are_refused_in_one_sentence(monkeypatch, strategy, ranks, sentence):
    with pytest.raises(Unsupported, match=re.escape(sentence)):
        resolved(monkeypatch, strategy, "moe", ranks_per_node=ranks)


def test_ep_groups_the_data_parallel_ranks_once_more(monkeypatch):
    def experts(**degrees):
        run = resolved(monkeypatch, degrees, "moe", ranks_per_node=8)
        return run.mesh.size, run.mesh.expert_replicas, run.mesh.expert_shards, run.mesh.parts("experts")

    assert experts(dp_shard=-1, ep=2) == (8, 1, 4, 2)
    assert experts(dp_shard=-1, cp=2, ep=-1) == (8, 1, 1, 8)
    assert experts(dp_shard=-1, tp=2, ep=2) == (8, 1, 2, 2)
    assert experts(dp_replicate=2, dp_shard=-1, ep=2) == (8, 2, 2, 2)
    assert experts(dp_replicate=-1, dp_shard=2, ep=4) == (8, 2, 1, 4), "more than have different shards"


@pytest.mark.parametrize("others", [{}, {"tp": 2}, {"dp_shard": -1, "tp": 2}, {"dp_shard": -1, "pp": 2}])
def test_unused_parameters_are_found_by_ddp_and_fsdp_alone(monkeypatch, others):
    with pytest.raises(UserError, match=r"find_unused_parameters (needs|works with) dp_replicate"):
        resolved(monkeypatch, {"find_unused_parameters": True} | others)
    for own in ({"dp_replicate": -1}, {"dp_shard": -1}):
        assert resolved(monkeypatch, {"find_unused_parameters": True} | own).options.find_unused_parameters
