"""Adapters: what they are refused for, what they begin with, and that peft reads what is exported."""

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from helpers.common import build, initial_weights, tiny_run
from shardlab import models
from shardlab.errors import UserError
from shardlab.models import export
from shardlab.models.weights import materialize

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
    model = build(run)
    materialize(model, tmp_path / "weights", torch.device("cpu"))
    export.write(run, tmp_path / "weights", tmp_path, tmp_path / "exported")
    tokens = torch.randint(0, run.model.args["vocab_size"], (2, 16))
    with torch.no_grad():
        ours = model(tokens)
        kind, adapter = transformers.AutoModelForCausalLM, tmp_path / "exported" / "adapter"
        merged = kind.from_pretrained(tmp_path / "exported", dtype=torch.float64)
        base = kind.from_pretrained(adapter / "base", dtype=torch.float64)
        before = base(tokens).logits
        read = peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False).double()
        logits = [read(tokens).logits, merged(tokens).logits]
    assert {*load_file(adapter / "adapter_model.safetensors")} == {
        *peft.get_peft_model_state_dict(read, save_embedding_layers=False)
    }
    distances = [float((each - ours).abs().max() / ours.abs().max()) for each in (*logits, before)]
    assert max(distances[:2]) < 1e-5 < 1e-1 < distances[2]  # the library computes norms and angles in float32
