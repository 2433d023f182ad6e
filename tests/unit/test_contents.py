"""What a model contains, checked as the job of the initial weights does it, without ranks; a capture has no dropout."""

import foreign
import pytest
import torch
from foreign import ENGINES, MODELS
from torch import nn
from transformers import GPT2Config

from helpers.common import build, save_initial, tiny_run
from shardlab.errors import UserError
from shardlab.models import contents
from shardlab.models.weights import materialize
from shardlab.runtime import tasks, trial
from shardlab.settings.model_rules import refusal
from shardlab.train.capture import settings


@pytest.fixture
def looked_at(tmp_path, tiny_data):
    """Function that does what init.py does with a model; returns the model without weights, and what was seen."""

    def look(run):
        model = build(run)
        contents.check(run, model)
        contents.check_drawn(run, model)
        save_initial(run, tmp_path / "initial.safetensors")
        materialize(model, tmp_path / "initial.safetensors", torch.device("cpu"))
        task = tasks.load(run.task, tiny_data / foreign.DATA, getattr(torch, run.recipe.dtype), torch.device("cpu"))
        return build(run), trial.find_properties(run, task, model)

    return look


@pytest.fixture
def checked(looked_at):
    """Function that returns the notes on a model that these strategies train."""

    def check(name, *strategies, **recipe):
        runs, single = ([foreign.run_of(name, each, **recipe) for each in some] for some in (strategies, ["single"]))
        contents.check_all(single[0], build(single[0]), runs, {})
        model, seen = looked_at(single[0])
        return contents.check_all(single[0], model, runs, seen)

    return check


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_refused_before_anything_trains_or_not_at_all(looked_at, name):
    runs = {engine: foreign.run_of(name, engine) for engine in ENGINES}
    try:
        model, seen = looked_at(runs["single"])
    except UserError as error:
        sentences = dict.fromkeys(ENGINES, str(error))
    else:
        found = {engine: contents.inspect(run, model) | seen for engine, run in runs.items()}
        sentences = {engine: refusal(run, found[engine]) for engine, run in runs.items()}
    assert {engine for engine, sentence in sentences.items() if sentence} == {*MODELS[name].refused}
    for engine, words in MODELS[name].refused.items():
        assert name in sentences[engine]
        assert words in sentences[engine]


def test_a_refusal_names_the_parameters_and_the_strategies_that_take_the_model(checked):
    words = r"^fsdp, zero3 x scalar_parameter: .*\(scale\).* Of the strategies to train it, these take it: "
    words += r"single, ddp\.$"
    with pytest.raises(UserError, match=words):
        checked("scalar_parameter", "single", "ddp", "fsdp", "zero3")


def test_what_trains_unequally_is_noted_with_the_key_that_helps(checked):
    begin = "ddp, fsdp and strategies alike: model batch_norm has batch norm (norm"
    (note,) = checked("batch_norm", "single", "ddp", "fsdp")
    assert note.startswith(begin)
    assert "statistics are of each rank's own samples" in note
    assert checked("batch_norm", "single", "ddp", sync_batch_norm=True) == []
    accumulated = checked("batch_norm", "ddp", sync_batch_norm=True, gradient_accumulation_steps=2)
    assert "of each micro-batch" in accumulated[0]


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
