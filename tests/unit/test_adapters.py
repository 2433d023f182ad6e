"""Adapters: what they are refused for, what they begin with, and that peft reads what is exported."""

import pytest
import torch
from safetensors.torch import save_file

from helpers.common import build, initial_weights, tiny_run
from helpers.exported_adapters import distances
from shardlab import models
from shardlab.errors import UserError

TARGETS = ["layers.*.attention.*", "layers.1.down", "output"]


def adapted(**adapter):
    return tiny_run("llama2", dtype="float64", adapter={"rank": 2, "targets": TARGETS} | adapter)


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ({"targets": ["layers.*.query"]}, ["targets: layers.*.query names no submodule", "layers.0.attention.query"]),
        ({"targets": ["layers.*"]}, ["layers.* names layers.0, of type Block", "nn.Linear"]),
        ({"targets": ["embedding"]}, ["names embedding, of type Embedding"]),
        ({"rank": 1000}, ["rank 1000 is more than layers.0.attention.query has", "lower it"]),
    ],
)
def test_adapters_that_do_not_fit(adapter, words):
    with pytest.raises(UserError) as raised:
        build(adapted(**adapter))
    assert all(word in str(raised.value) for word in words), raised.value
    assert "\n" not in str(raised.value)


def test_experts_have_no_adapters():
    run = tiny_run("moe", adapter={"targets": ["layers.*.experts"]})
    with pytest.raises(UserError, match="of type Experts"):
        build(run)


def test_a_model_begins_as_it_is_without_adapter():
    plain, factors = initial_weights(tiny_run("llama2", dtype="float64")), initial_weights(adapted())
    assert all(torch.equal(value, factors[name]) for name, value in plain.items())
    more = {name: value for name, value in factors.items() if name not in plain}
    assert {name.rpartition(".")[2]: bool(value.any()) for name, value in more.items()} == {
        "lora_A": True,
        "lora_B": False,
    }
    assert {*more} == {*models.trained_names(build(adapted()))}


def test_peft_computes_the_same_from_what_is_exported(tmp_path):
    run, weights = adapted(), initial_weights(adapted())
    for name, value in weights.items():
        if name.endswith("lora_B"):
            value.normal_()
    save_file(weights, tmp_path / "weights")
    of_peft, merged, without = distances(run, tmp_path / "weights", tmp_path)
    assert max(of_peft, merged) < 1e-5 < 1e-1 < without  # the library computes norms and angles in float32
