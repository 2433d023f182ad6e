"""Where the parts of a rank lie in the picture of a strategy, and who exchanges with whom."""

import pytest

from helpers.common import tiny_run
from shardlab.report.technique_picture import batch_of, members, part_of
from shardlab.settings.mesh import ParallelDims

WORLD = 4


@pytest.mark.parametrize(
    ("degrees", "share", "begins", "samples"),
    [
        ({"dp_replicate": 4}, 1.0, [0, 0, 0, 0], [0, 0.25, 0.5, 0.75]),
        ({"dp_shard": 4}, 0.25, [0, 0.25, 0.5, 0.75], [0, 0.25, 0.5, 0.75]),
        ({"dp_shard": 2, "tp": 2}, 0.25, [0, 0.25, 0.5, 0.75], [0, 0, 0.5, 0.5]),
        ({"pp": 4}, 0.25, [0, 0.25, 0.5, 0.75], [0, 0, 0, 0]),
        ({"tp": 4}, 0.4, [0, 0.2, 0.4, 0.6], [0, 0, 0, 0]),
    ],
)
def test_a_rank_has_its_part(degrees, share, begins, samples):
    mesh = ParallelDims(degrees)
    found = [part_of(mesh, WORLD, rank, [share] * WORLD) for rank in range(WORLD)]
    assert found == pytest.approx(begins)
    assert [batch_of(mesh, rank, head_and_tail=True)[0][0] for rank in range(WORLD)] == samples


def test_sequences_are_split_into_heads_and_tails():
    assert tiny_run("llama2", "cp").options.splits_head_and_tail
    found = [batch_of(ParallelDims({"cp": 2}), rank, head_and_tail=True) for rank in range(2)]
    assert found == [[(0, 0, 1, 0.25), (0, 0.75, 1, 0.25)], [(0, 0.25, 1, 0.25), (0, 0.5, 1, 0.25)]]


@pytest.mark.parametrize(
    ("degrees", "axis", "groups"),
    [
        ({"dp_shard": 2, "tp": 2}, "tp", [{0, 1}, {2, 3}]),
        ({"dp_shard": 2, "cp": 2}, "dp_shard x cp", [{0, 1, 2, 3}]),
        ({"dp_shard": 4, "ep": 2}, "ep", [{0, 1}, {2, 3}]),
        ({"dp_shard": 4, "ep": 2}, "dp_shard / ep", [{0, 2}, {1, 3}]),
    ],
)
def test_the_ranks_of_a_collective(degrees, axis, groups):
    mesh = ParallelDims(degrees)
    found = {}
    for rank in range(WORLD):
        found.setdefault(members(mesh, axis, rank), set()).add(rank)
    assert [*found.values()] == groups
