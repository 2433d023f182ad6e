"""What is asked of a collective can fail; its figures, by hand."""

import pytest
import torch

from shardlab.measure import collectives
from shardlab.measure.collectives import Trial, _right
from shardlab.measure.traffic import fraction_sent
from shardlab.training.distributed import World


def test_a_result_that_is_not_what_it_must_be_is_seen():
    here = torch.zeros(4)
    assert _right(Trial(lambda: here.fill_(2), here, torch.full((4,), 2.0)))
    assert not _right(Trial(lambda: here.fill_(3), here, torch.full((4,), 2.0)))
    assert _right(Trial(lambda: None, here[:0], here[:0])), "a rank that gets nothing"


@pytest.mark.parametrize(
    ("collective", "part"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("send", 1.0)],
)
def test_what_a_rank_of_four_sends(collective, part):
    """nccl-tests, doc/PERFORMANCE.md: of an all-reduce 2 (n - 1) / n, of a gather (n - 1) / n."""
    assert fraction_sent(collective, 4) == part


def test_bandwidths_are_of_the_slowest_rank(monkeypatch):
    """Two ranks, 4000 bytes, an all-reduce: the median of 2, 4 and 9 ms is 1 MB/s, and each sends as much as it has."""
    here, times = torch.zeros(4), iter([0.001, 0.004, 0.009])
    monkeypatch.setitem(collectives.COLLECTIVES, "all_reduce", lambda *_: Trial(lambda: None, here, here))
    monkeypatch.setattr(collectives, "_timed", lambda *_: next(times))
    others = {list: lambda mine: [mine, [0.002, 0.003, 0.008]], bool: lambda mine: [mine, False]}
    monkeypatch.setattr(World, "gather", lambda _, mine: others[type(mine)](mine))
    found = collectives.measure(World(0, 2, torch.device("cpu")), "all_reduce", 4000, 3)
    assert found.pop("microseconds") == pytest.approx(4000)
    assert found.pop("algorithm_gb_per_second") == pytest.approx(0.001)
    assert found.pop("bus_gb_per_second") == pytest.approx(0.001)
    assert found == {"collective": "all_reduce", "bytes": 4000, "ranks": 2, "wrong_ranks": 1}
    times = iter([0.004])
    four = [World(0, 4, torch.device("cpu")), "all_reduce", 4000, 1]
    monkeypatch.setattr(World, "gather", lambda _, mine: [mine] * 4)
    assert collectives.measure(*four)["bus_gb_per_second"] == pytest.approx(0.0015)
