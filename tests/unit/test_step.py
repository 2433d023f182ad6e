"""One step: batch norm is not recomputed; a capture has no dropout."""

import pytest
from torch import nn
from transformers import GPT2Config

from helpers.common import tiny_run
from shardlab.errors import UserError
from shardlab.models import contents
from shardlab.train.capture import settings


def test_batch_norm_in_a_recomputed_block_is_refused():
    block = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16))
    run = tiny_run("mlp", activation_checkpointing="full")
    run = run.model_copy(update={"model": run.model.model_copy(update={"blocks": ["0"]})})
    contents.check(run, nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
    with pytest.raises(UserError, match=r"recipe.activation_checkpointing: 0.1 of model mlp is batch norm"):
        contents.check(run, nn.Sequential(block, nn.Linear(16, 2)))


def test_a_captured_run_has_no_dropout(tmp_path):
    """Nor that of the library's defaults, which no file names."""
    GPT2Config(n_embd=32, n_layer=1, n_head=4).save_pretrained(tmp_path)
    run = tiny_run("llama2")
    changes = {"folder": str(tmp_path), "pretrained": False, "args": {"vocab_size": 300}}
    run = run.model_copy(update={"model": run.model.model_copy(update=changes)})
    dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    assert settings(run).model.args == {"vocab_size": 300} | dropped
