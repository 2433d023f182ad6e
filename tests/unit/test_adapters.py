"""Adapters: what they are refused for, what they begin with, and that peft reads what is exported; groups' patterns."""

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from helpers.common import build, initial_weights, tiny_run
from helpers.transformers_models import CONFIGS
from shardlab import models
from shardlab.errors import UserError
from shardlab.models import export
from shardlab.models.weights import materialize
from shardlab.runtime import optimizers

TARGETS = ["layers.*.attention.*", "layers.1.down", "output"]


@pytest.mark.parametrize(
    ("workload", "adapter", "words"),
    [
        ("llama2", {"targets": ["layers.*.query"]}, r"layers.\*.query names no submodule .*layers.0.attention.query"),
        ("moe", {"targets": ["layers.*.experts"]}, "names layers.0.experts, of type Experts"),
        ("llama2", {"rank": 1000, "targets": TARGETS}, "rank 1000 is more than layers.0.attention.query has"),
    ],
)
def test_adapters_that_do_not_fit(workload, adapter, words):
    with pytest.raises(UserError, match=words):
        build(tiny_run(workload, adapter=adapter))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"groups": {"layer.0": {}}}, "recipe.groups: layer.0 names no parameter.*layers.0"),
        ({"groups": {"layers.*": {}, "layers.1.up": {}}}, r"both layers\.\* and layers\.1\.up name layers.1.up.weight"),
        ({"freeze": ["*"]}, "recipe.freeze names every parameter of the model.*narrow"),
    ],
)
def test_patterns_that_do_not_fit(recipe, words):
    run = tiny_run("llama2", **recipe)
    with pytest.raises(UserError, match=words):
        optimizers.own_settings(run.recipe, build(run), [])


@pytest.mark.parametrize("library", [False, True])
def test_a_model_begins_as_it_is_without_adapter(library, tmp_path):
    """The factors have their own stream, which goes on from layer to layer: no two begin alike."""
    CONFIGS["llama"].save_pretrained(tmp_path)

    def run_of(**recipe):
        run = tiny_run("llama2", dtype="float64", **recipe)
        args = {"vocab_size": run.model.args["vocab_size"]}
        folder = {"folder": str(tmp_path), "pretrained": False, "tensor": {}, "blocks": [], "segments": 0, "args": args}
        return run.model_copy(update={"model": run.model.model_copy(update=folder)}) if library else run

    targets = ["model.layers.*.self_attn.*_proj", "lm_head"] if library else TARGETS
    run = run_of(adapter={"rank": 2, "targets": targets})
    plain, factors = initial_weights(run_of()), initial_weights(run)
    assert all(torch.equal(value, factors.pop(name)) for name, value in plain.items())
    assert {*factors} == {*models.trained_names(build(run))}
    drawn = [value for name, value in factors.items() if name.endswith("lora_A")]
    assert 2 * len(drawn) == len(factors)
    assert len({tuple(value.flatten().tolist()) for value in drawn}) == len(drawn) >= 9
    for value in drawn:  # uniform in +- 1 / sqrt(inputs), as peft has it
        assert 0.8 < value.abs().max() * value.shape[1] ** 0.5 <= 1
    assert not any(value.any() for name, value in factors.items() if name.endswith("lora_B"))


def test_peft_computes_the_same_from_what_is_exported(tmp_path):
    run = tiny_run("llama2", dtype="float64", adapter={"rank": 2, "targets": TARGETS})
    weights = initial_weights(run)
    for name, value in weights.items():
        if name.endswith("lora_B"):
            value.normal_()
    save_file(weights, tmp_path / "weights")
    model = build(run)
    materialize(model, tmp_path / "weights", torch.device("cpu"))
    export.write(run, tmp_path / "weights", tmp_path, tmp_path / "exported")
    tokens = torch.randint(0, run.model.args["vocab_size"], (2, 16))
    kind, adapter = transformers.AutoModelForCausalLM, tmp_path / "exported" / "adapter"
    with torch.no_grad():
        ours = model(tokens)
        merged = kind.from_pretrained(tmp_path / "exported", dtype=torch.float64)(tokens).logits
        base = kind.from_pretrained(adapter / "base", dtype=torch.float64)
        without = base(tokens).logits
        read = peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False).double()
        of_peft = read(tokens).logits
    written = peft.get_peft_model_state_dict(read, save_embedding_layers=False)
    assert load_file(adapter / "adapter_model.safetensors").keys() == written.keys()
    apart = [float((each - ours).abs().max() / ours.abs().max()) for each in (of_peft, merged, without)]
    assert max(apart[:2]) < 1e-5 < 1e-1 < apart[2]  # the library computes norms and angles in float32
