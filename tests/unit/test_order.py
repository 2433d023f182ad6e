"""The batch order: a function of (seed, epoch, step), whatever the number of ranks."""

import numpy as np
import pytest

from shardlab.data.order import BatchOrder, in_order, samples_of


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize("samples", [32, 33])
def test_any_number_of_ranks_reads_the_same_samples_in_the_same_order(ranks, samples):
    order = BatchOrder(samples=samples, global_batch_size=5, seed=3)
    epochs = 2
    for step in range(epochs * order.steps_per_epoch):
        shares = [samples_of(order.batch(step), rank, ranks) for rank in range(ranks)]
        assert np.concatenate(shares).tolist() == order.batch(step).tolist()
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("samples", "left"), [(35, 5), (36, 1), (3, 3)])
def test_each_epoch_has_every_sample_once_and_another_order(samples, left):
    order = BatchOrder(samples=samples, global_batch_size=5, seed=3)
    steps = order.steps_per_epoch
    epochs = [np.concatenate([order.batch(epoch * steps + step) for step in range(steps)]) for epoch in range(30)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(samples))
    if samples > 3:
        assert len({tuple(epoch) for epoch in epochs}) == 30, "no order comes back"
    assert len(order.batch(steps - 1)) == left, "the last batch has what is left"


@pytest.mark.parametrize(("samples", "size"), [(300, 64), (257, 64), (256, 64), (3, 64)])
def test_evaluation_counts_each_sample_exactly_once(samples, size):
    batches = in_order(samples, size)
    assert np.concatenate(batches).tolist() == list(range(samples))
    assert max(map(len, batches)) <= size
