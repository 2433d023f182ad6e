"""What is asked of a collective can fail."""

import torch

from shardlab.measure.collectives import Trial, _right


def test_a_result_that_is_not_what_it_must_be_is_seen():
    here = torch.zeros(4)
    assert _right(Trial(lambda: here.fill_(2), here, torch.full((4,), 2.0)))
    assert not _right(Trial(lambda: here.fill_(3), here, torch.full((4,), 2.0)))
    assert _right(Trial(lambda: None, here[:0], here[:0])), "a rank that gets nothing"
