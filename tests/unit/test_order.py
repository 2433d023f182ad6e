"""The batch order: a function of (seed, epoch, step), whatever the number of ranks."""

import numpy as np
import pytest

from shardlab.data.order import BatchOrder, in_order, samples_of


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("samples", [32, 33, 37])
def test_any_number_of_ranks_reads_the_same_samples_in_the_same_order(ranks, samples):
    order = BatchOrder(samples=samples, global_batch_size=5, seed=3)
    epochs = 2
    for step in range(epochs * order.steps_per_epoch):
        shares = [samples_of(order.batch(step), rank, ranks) for rank in range(ranks)]
        assert np.concatenate(shares).tolist() == order.batch(step).tolist()
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_each_epoch_has_every_sample_once_and_another_order():
    order = BatchOrder(samples=37, global_batch_size=5, seed=3)
    epochs = [
        np.concatenate([order.batch(epoch * order.steps_per_epoch + step) for step in range(order.steps_per_epoch)])
        for epoch in range(2)
    ]
    for epoch in epochs:
        assert sorted(epoch) == list(range(37))
    assert epochs[0].tolist() != epochs[1].tolist()
    assert len(order.batch(order.steps_per_epoch - 1)) == 2, "the last batch has what is left"


def test_order_needs_no_state_and_follows_the_seed():
    first = BatchOrder(100, 8, seed=1)
    later = [first.batch(step).tolist() for step in (20, 3, 20)]
    assert later[0] == later[2] == BatchOrder(100, 8, seed=1).batch(20).tolist()
    assert later[0] != BatchOrder(100, 8, seed=2).batch(20).tolist()


def test_evaluation_counts_each_sample_exactly_once():
    assert np.concatenate(in_order(300, 64)).tolist() == list(range(300))
