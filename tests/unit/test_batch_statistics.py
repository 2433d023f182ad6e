"""Batch norm's statistics: a recomputation or a look at shapes does not change them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shardlab.errors import UserError
from shardlab.parallel import parallelize
from shardlab.runtime.batch_statistics import statistics_kept


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.BatchNorm1d(16)
        self.block = nn.Sequential(nn.Linear(6, 16), norm, nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 16))
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.block(x))


def trained(mode):
    """Losses and what is left of three steps of two micro-batches, both in flight at once, as in a pipeline."""
    torch.manual_seed(0)
    model = Model().double()
    parallelize.recompute(model, ["block"], mode)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    losses = []
    for _ in range(3):
        several = [model(torch.randn(8, 6, dtype=torch.float64)).square().sum() for _ in range(2)]
        for loss in several:
            loss.backward()
        losses += [loss.item() for loss in several]
        optimizer.step()
        optimizer.zero_grad()
    return losses, left(model)


def left(model):
    return {name: value.tolist() for name, value in (*model.named_parameters(), *model.named_buffers())}


@pytest.mark.parametrize("mode", ["full", "selective", "alternate"])
def test_a_recomputation_changes_no_result(mode):
    assert trained(mode) == trained("none")


def test_compiled_and_recomputed_code_must_not_change_statistics():
    model = Model()
    recipe = SimpleNamespace(activation_checkpointing="full", compile="blocks", compile_backend="eager")
    parallelize.recompute(model, ["block"], recipe.activation_checkpointing)
    parallelize.compile_forward(model, ["block"], recipe)
    with pytest.raises(UserError, match=r"changes the statistics of batch norm.*; set one of the two to none\.$"):
        model(torch.randn(8, 6))
    model.eval()(torch.randn(8, 6))


def test_statistics_that_are_kept_are_as_before():
    model = Model()
    before, buffers = left(model), {id(buffer) for buffer in model.buffers()}
    with statistics_kept(model):
        model(torch.randn(8, 6))
        assert left(model) != before
    assert left(model) == before
    assert {id(buffer) for buffer in model.buffers()} == buffers, "DDP holds these"
