"""One step: batch norm's statistics, what a capture keeps."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import GPT2Config

from helpers.common import tiny_run
from shardlab.errors import UserError
from shardlab.parallel import parallelize
from shardlab.train.capture import settings
from shardlab.train.module_outputs import ModuleOutputs


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


@pytest.mark.parametrize("mode", ["full", "selective"])
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


class Twice(nn.Module):
    """Calls one module for tokens, another one twice."""

    def __init__(self):
        super().__init__()
        self.up, self.twice = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.twice(self.twice(self.up(x.flatten(0, 1)).unflatten(0, x.shape[:2])) - 1)


def watched(model, pieces=None):
    """Outputs of a model on one device, or in a pipeline of that many pieces."""
    recipe = SimpleNamespace(compile=None, loss_chunks=1)
    run = SimpleNamespace(options=SimpleNamespace(single_process=None), recipe=recipe)
    return ModuleOutputs(SimpleNamespace(run=run, chunks=pieces, parameter_count=1, parts=[model]))


@pytest.mark.parametrize(("chunks", "before"), [(None, 0), (2, 1)])
def test_outputs_of_modules_that_see_tokens_or_are_called_twice(chunks, before):
    """``before``: passes that only infer shapes."""
    model, x = Twice(), torch.randn(4, 3, 4)
    found = watched(model, chunks)
    pieces = x.chunk(chunks or 1)
    expected = torch.cat([model(piece) for piece in pieces])
    found.clear()
    for piece in [*pieces[:1] * before, *pieces]:
        model(piece)
    kept, order = found.take([4])
    assert {*kept} == {"0/output/twice/0", "0/output//0"}
    assert all(torch.equal(value, expected.detach()) for value in kept.values())
    assert order == ["up", "twice", ""]


def test_a_captured_run_has_no_dropout(tmp_path):
    """Nor that of the library's defaults, which no file names."""
    GPT2Config(n_embd=32, n_layer=1, n_head=4).save_pretrained(tmp_path)
    run = tiny_run("llama2")
    changes = {"folder": str(tmp_path), "pretrained": False, "args": {"vocab_size": 300}}
    run = run.model_copy(update={"model": run.model.model_copy(update=changes)})
    dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    assert settings(run).model.args == {"vocab_size": 300} | dropped
