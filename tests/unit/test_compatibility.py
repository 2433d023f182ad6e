"""How runs are spread: stages of pipelines, and what does not fit, in one sentence."""

import pytest

from helpers.common import build as build_model
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


@pytest.mark.parametrize(("pieces", "stages"), [(4, 4), (14, 4), (6, 2), (7, 3)])
def test_every_piece_is_in_one_stage_and_the_stages_are_even(pieces, stages):
    where = boundaries(pieces, stages)
    assert [piece for start, stop in where for piece in range(start, stop)] == list(range(pieces))
    sizes = [stop - start for start, stop in where]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("strategy", "config", "error", "words"),
    [
        ({"pp": 2, "microbatches": 1}, {}, UserError, "1F1B needs 2 microbatches or more; microbatches is 1"),
        ({"pp": 2, "schedule": "Interleaved1F1B", "microbatches": 5}, {}, UserError, "a multiple of 2 microbatches"),
        ({"pp": -1}, {"ranks_per_node": 8}, Unsupported, "can be cut into 4 pieces, and mine needs 8"),
        ({"pp": -1, "dp_replicate": 2}, {"ranks_per_node": 4}, UserError, "add dp_shard: 1"),
        ({"pp": 2, "tp": 2, "sequence_parallel": True}, {"ranks_per_node": 4}, Unsupported, "across pipeline stages"),
        ({"sequence_parallel": True, "dp_shard": -1}, {}, UserError, "need tp"),
        ({"one_process": "mp", "tp": 2}, {}, UserError, "one_process is one rank and takes no degrees; remove tp"),
        ({"one_process": "dp"}, {"recipe": {"compile": "blocks"}}, Unsupported, "use ddp"),
        ({"dp_shard": -1}, {"recipe": {"precision": "fp16"}}, Unsupported, "set recipe.precision to bf16"),
        ({"tp": 2}, {"recipe": {"precision": "float8"}}, Unsupported, "float8 goes with neither"),
        (
            {"pp": 2, "schedule": "ZBVZeroBubble"},
            {"recipe": {"activation_checkpointing": "full"}},
            Unsupported,
            "choose another schedule",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(monkeypatch, strategy, config, error, words):
    with pytest.raises(error) as seen:
        resolved(monkeypatch, strategy, **config)
    assert words in str(seen.value)


def test_one_process_takes_the_devices_of_a_node(monkeypatch):
    run = resolved(monkeypatch, {"one_process": "mp"}, ranks_per_node=4, nodes=1)
    assert (run.world_size, run.devices_per_rank, run.devices_per_node) == (1, 4, 4)


def test_the_number_of_pieces_is_the_models():
    from shardlab import models

    for workload in load.names("workloads"):
        run = resolve.run(load.config({}), "single", workload)
        if run.model.folder:
            assert run.model.pieces == 0
            continue
        chain = build_model(run)
        pieces = chain.pieces()
        assert len(pieces) == run.model.pieces
        owned = [name for piece in pieces for name in piece.names]
        for name in models.state(chain):
            assert sum(name == own or name.startswith(f"{own}.") for own in owned) == 1, name
