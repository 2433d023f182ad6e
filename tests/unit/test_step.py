"""One step: what recomputation does to batch norm's statistics; a capture has no dropout."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config

from helpers.common import tiny_run
from shardlab.parallel import parallelize
from shardlab.train.capture import settings


def trained(mode):
    """Losses and what is left of three steps of two micro-batches, both in flight at once, as in a pipeline."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 16))
    model = nn.Sequential(block, nn.Linear(16, 2)).double()
    parallelize.recompute(model, ["0"], mode)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    losses = []
    for _ in range(3):
        several = [model(torch.randn(8, 6, dtype=torch.float64)).square().sum() for _ in range(2)]
        for loss in several:
            loss.backward()
        losses += [loss.item() for loss in several]
        optimizer.step()
        optimizer.zero_grad()
    return losses, [value.tolist() for value in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_a_recomputation_changes_no_result(mode):
    assert trained(mode) == trained("none")


def test_a_captured_run_has_no_dropout(tmp_path):
    """Nor that of the library's defaults, which no file names."""
    GPT2Config(n_embd=32, n_layer=1, n_head=4).save_pretrained(tmp_path)
    run = tiny_run("llama2")
    changes = {"folder": str(tmp_path), "pretrained": False, "args": {"vocab_size": 300}}
    run = run.model_copy(update={"model": run.model.model_copy(update=changes)})
    dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    assert settings(run).model.args == {"vocab_size": 300} | dropped
