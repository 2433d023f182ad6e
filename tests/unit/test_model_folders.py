"""A transformers model's folder: its weights are all used and all needed, and its config.json describes a model."""

import json
import math
import re
import sys
import tempfile
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from helpers import transformers_models
from shardlab import models
from shardlab.cli import check_model
from shardlab.errors import UserError
from shardlab.models import _transformers
from shardlab.proof import of_workload, proof_table, tiny_config
from shardlab.proof.prove import Proof
from shardlab.proof.tiny_runs import NOTHING, Written, tiny_run
from shardlab.settings import load
from shardlab.settings.pretrained import settings as settings_of
from shardlab.settings.types import Model

LLAMA = transformers_models.SIZES | {"model_type": "llama"}


def create(folder, **args):
    return _transformers.create("language_modelling", str(folder), args, pretrained=True)


def edited(folder, keys):
    """Change keys of a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def of_a_classifier(weights):
    return {name: value for name, value in weights.items() if name != "lm_head.weight"} | {
        "score.weight": torch.ones(2)
    }


@pytest.mark.parametrize(
    ("kind", "keys", "change", "words"),
    [
        ("llama", {"num_hidden_layers": 3}, {}, "(30 tensors): 9 missing (model.layers.2.input_layernorm.weight, "),
        ("llama", {"intermediate_size": 64}, {}, "6 of another shape (model.layers.0.mlp.down_proj.weight is (32, 48)"),
        ("llama", {}, of_a_classifier, "1 missing (lm_head.weight), 1 unknown to the model (score.weight); "),
        ("llama", {}, {"model.norm.weight": torch.ones(32, dtype=torch.int8)}, "bits or more (model.norm.weight)"),
        ("llama", {}, {"model.norm.weight": torch.full((32,), math.nan)}, "not finite (model.norm.weight)"),
        ("qwen3", {}, {"lm_head.weight": torch.ones(300, 32)}, "have other values for"),  # tied
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, {}, "quantization_config (gptq), and no strategy"),
    ],
)
def test_weights_that_are_not_those_of_the_configuration_are_refused(tmp_path, kind, keys, change, words):
    folder = transformers_models.make(kind, tmp_path)
    edited(folder, keys)
    weights = load_file(folder / "model.safetensors")
    changed = weights | change if isinstance(change, dict) else change(weights)
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=re.escape(words)) as error:
        create(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_quantized_or_an_adapter_is_said_before_a_job_and_by_check_model(tmp_path, monkeypatch):
    model = Model(name=f"hf:{tmp_path}", args={}, blocks=[], tensor={}, segments=0)
    monkeypatch.setattr(sys, "argv", ["check-model", str(tmp_path), "--strategies", "fsdp"])

    def refused(words):
        for call in (lambda: settings_of(model, "own.yaml"), check_model.main):
            with pytest.raises(UserError, match=re.escape(words)):
                call()

    adapter, config = tmp_path / "adapter_config.json", tmp_path / "config.json"
    adapter.write_text("{}")
    refused("has an adapter and no model; name its base_model_name_or_path (adapter_config.json), or")
    config.write_text(json.dumps(LLAMA))
    refused("has an adapter beside its model")
    adapter.unlink()
    config.write_text(json.dumps(LLAMA | {"quantization_config": {"quant_method": "fp8"}}))
    refused("has quantization_config (fp8), and no")
    config.write_text(json.dumps(LLAMA))
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).touch()
    refused("has weights twice")
    new = settings_of(model.model_copy(update={"args": {"pretrained": False}}), "own.yaml")
    assert new.folder == str(tmp_path)


def test_a_classifier_without_a_head_gets_one_and_no_other_new_weight(tmp_path, capsys):
    transformers.ViTModel(transformers_models.CONFIGS["vit"]).save_pretrained(tmp_path)
    _transformers.create("classification", str(tmp_path), {"classes": 5}, pretrained=True)
    assert "note: classifier.bias, classifier.weight of" in capsys.readouterr().out
    changes = {"classes": 5, "intermediate_size": 64, "num_hidden_layers": 1}
    with pytest.raises(UserError, match=r"3 of another shape \(vit\.layers\.0\.mlp\.fc1\.bias is") as error:
        _transformers.create("classification", str(tmp_path), changes, pretrained=True)
    assert "classifier." not in str(error.value)


def as_published(weights):
    """GPT-2's: of the model without its head, with the causal mask of each layer."""
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64) for layer in range(2)}
    masks |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(2)}
    return {name.removeprefix("transformer."): value for name, value in weights.items()} | masks


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("llama", lambda weights: {name: value.bfloat16() for name, value in weights.items()}),
        ("qwen3", lambda weights: {name: value for name, value in weights.items() if name != "lm_head.weight"}),
        ("mixtral", dict),
        ("gpt2", as_published),
    ],
)
def test_what_the_library_reads_as_the_same_model_is_taken(tmp_path, capsys, kind, change):
    path = transformers_models.make(kind, tmp_path) / "model.safetensors"
    expected = models.state(transformers_models.CLASSES[kind].from_pretrained(tmp_path))
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    found = models.state(create(tmp_path))
    assert all(value.allclose(found[name], atol=1e-3) for name, value in expected.items())
    assert "note:" not in capsys.readouterr().out


def test_a_head_is_tied_where_the_library_ties_it(tmp_path):
    CONFIG_MAPPING["mt5"]().save_pretrained(tmp_path)
    tiny_config.write(_transformers.configuration(tmp_path, {"tie_word_embeddings": False})[0], tmp_path)
    weights = models.state(_transformers.create("summarization", str(tmp_path), {}, pretrained=False))
    head = torch.ones_like(weights.pop("lm_head.weight"))

    def read(more):
        save_file(weights | more, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return _transformers.create("summarization", str(tmp_path), {}, pretrained=True)

    assert read({"lm_head.weight": head}).lm_head.weight.equal(head)
    tied = read({})
    assert tied.lm_head.weight is tied.shared.weight
    with pytest.raises(UserError, match=r"equals the embeddings, .*; remove lm_head.weight from the weights"):
        read({"lm_head.weight": weights["shared.weight"].clone()})
    with pytest.raises(UserError, match=r"for each; remove encoder.embed_tokens.weight from"):
        read({"lm_head.weight": head, "encoder.embed_tokens.weight": head.clone()})


def test_a_loss_of_the_router_is_refused(tmp_path):
    tiny_config.write(CONFIG_MAPPING["mixtral"](output_router_logits=True), tmp_path)
    with pytest.raises(UserError, match="the router's auxiliary loss"):
        _transformers.check("language_modelling", str(tmp_path), {})


def test_weights_in_several_files_are_taken_and_a_missing_one_is_named(tmp_path):
    transformers.LlamaForCausalLM(transformers_models.CONFIGS["llama"]).save_pretrained(tmp_path, max_shard_size="20KB")
    create(tmp_path)
    first = tmp_path / "model-00001-of-00006.safetensors"
    first.write_bytes(first.read_bytes()[:100])
    with pytest.raises(UserError, match=r"its weights are no whole file of safetensors .*; copy them again, or"):
        create(tmp_path)
    first.unlink()
    with pytest.raises(UserError, match=r"model-00001-of-00006\.safetensors; copy that file into the folder, or"):
        create(tmp_path)


FAULTY = [
    ([1, 2], "/config.json is [1, 2], no object of JSON; name a folder written by save_pretrained."),
    ("{", "/config.json is damaged (the model's configuration is not JSON: "),
    (LLAMA | {"num_hidden_layers": "4"}, ": Field 'num_hidden_layers' expected int, got str (value: '4'); correct it"),
    (LLAMA | {"attention_dropout": 1.5}, "attention_dropout is 1.5; a probability is from 0 to 1"),
    (LLAMA | {"rope_scaling": {"rope_type": "yarnn", "factor": 2.0}}, ": the library knows no 'yarnn' at `"),
    ({"model_type": "albert"}, "(AutoModelForCausalLM): the library has none of type albert; "),
]
"""Contents of a config.json, and what is said of it."""


@pytest.mark.parametrize(("content", "words"), FAULTY)
def test_a_config_that_describes_no_model_is_one_sentence(tmp_path, monkeypatch, content, words):
    (tmp_path / "config.json").write_text("{}")
    run, folder = tiny_run(tmp_path, "single"), tmp_path / "a model"
    run = run.model_copy(update={"model": run.model.model_copy(update={"folder": str(folder)})})
    folder.mkdir()
    (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["check-model", str(folder), "--strategies", "fsdp"])
    for call in (  # the command, and the stages of a call
        check_model.main,
        lambda: of_workload.check(run, ["fsdp"], tmp_path / "proofs.json"),
        lambda: models.build(run.model, run.task, torch.float32),
    ):
        with pytest.raises(UserError) as error:
            call()
        said = str(error.value)
        assert words in said
        assert "\n" not in said
        assert str(folder) in said
        assert tempfile.gettempdir() not in said.replace(str(folder), "")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"torch_dtype": "bfloat16"}, "^torch_dtype under `model:` has no effect: weights "),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, " takes the place of all its keys; add rope"),
        (
            {"sliding_window": "24"},
            ": Olmo3Config does not take sliding_window under `model:`: .* expected int, got str",
        ),
    ],
)
def test_keys_of_a_workload_that_fit_no_model_are_refused(tmp_path, keys, words):
    tiny_config.write(CONFIG_MAPPING["olmo3"](), tmp_path)
    with pytest.raises(UserError, match=words):
        _transformers.check("language_modelling", str(tmp_path), keys)


def test_a_strategy_that_is_not_proven_equal_is_refused(tmp_path, monkeypatch):
    """If what failed in its proof may be the strategy: those that divide a model."""
    verdicts = {"fsdp": "equal", "cp": "equal", "ddp": "failed", "mp": "failed", "tp@tp=4": "failed"}
    verdicts |= {"pp": "differs", "ep": "refused", "zero1": "", "tp@tp=8": ""}
    tried = {}

    def proven(_, strategies, written):
        tried.update(strategies)
        return [Proof(name, verdicts[name], "why") for name in strategies]

    monkeypatch.setattr(of_workload, "prove", proven)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    path = tmp_path / "proofs.json"
    path.write_text("")  # not those of an earlier call
    run = tiny_run(tmp_path, "single")
    of_workload.check(run, verdicts, path)
    remedies = {name: proof_table.remedy(Proof(name, "failed"), ["fsdp", "cp"]) for name in verdicts}
    assert json.loads(path.read_text())["refused"] == {
        **{
            name: f"it could not be proven at tiny sizes (why); {remedies[name]}."
            for name in ("mp", "tp@tp=4", "tp@tp=8")
        },
        "pp": f"at tiny sizes a step is not that of one process: why; {remedies['pp']}.",
        "ep": "why",
    }
    assert tried["tp@tp=4"].degrees == {"tp": 2}
    assert tried.keys() == verdicts.keys() - {"zero1", "tp@tp=8"}, "of sizes one"
    tried.clear()
    of_workload.check(run, verdicts, path)
    assert tried.keys() == {"ddp", "mp", "tp@tp=4"}, "what failed may be this machine's"


def test_a_proof_holds_for_all_that_it_depends_on(tmp_path, monkeypatch):
    def key(settings="ddp", written=NOTHING, **replaced):
        with monkeypatch.context() as patched:
            for name, value in replaced.items():
                patched.setattr(of_workload, name, value)
            return of_workload._key(tmp_path, "name", load.variant_of_strategy(settings), written)

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    other = SimpleNamespace(__version__="other", proof_sources=lambda: {"a": "b"})
    keys = [key(**{name: other}) for name in ("torch", "transformers", "code_fingerprint")]
    keys += [key(), key("fsdp"), key(written=Written(["a"], {}))]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 3}))
    assert len({*keys, key()}) == 7


def test_a_strategy_that_cannot_be_proven_is_said_first(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["check-model", "hf:no/where", "--strategies", "ddp", "zero2"])
    with pytest.raises(UserError, match=r"zero2 is .*, and only PyTorch's"):
        check_model.main()


@pytest.mark.parametrize(
    ("keys", "unread"),
    [
        (
            LLAMA | {"rms_norm_eps": 1e-6, "rms_norm_epsilon": 1e-3, "num_kv_heads": 2, "torch_dtype": "bfloat16"},
            ["rms_norm_epsilon", "num_kv_heads"],
        ),
        ({"model_type": "t5gemma", "encoder": {"sliding_window": 16, "sliding_windw": 8}}, ["encoder.sliding_windw"]),
    ],
)
def test_keys_that_nothing_reads_are_found(tmp_path, keys, unread):
    (tmp_path / "config.json").write_text(json.dumps(keys))
    task = "summarization" if "encoder" in keys else "language_modelling"
    assert _transformers.unread(task, str(tmp_path), {}) == unread
