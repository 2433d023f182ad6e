"""How runs are spread: stages of pipelines, and the devices of one process."""

import pytest

from helpers.common import build as build_model
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


def test_the_number_of_segments_is_the_models():
    from shardlab import models

    for workload in load.names("workloads"):
        run = resolve.run(load.config({}), "single", workload)
        if run.model.folder:
            assert run.model.segments == 0
            continue
        chain = build_model(run)
        segments = chain.segments()
        assert len(segments) == run.model.segments
        owned = [name for segment in segments for name in segment.names]
        for name in models.state(chain):
            assert sum(name == own or name.startswith(f"{own}.") for own in owned) == 1, name
