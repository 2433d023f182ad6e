"""A transformers model's folder: its weights are all used and all needed, and its config.json describes a model."""

import json
import math
import re
import sys
import tempfile
from contextlib import nullcontext

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
from shardlab.proof import prove, tiny_config
from shardlab.proof.prove import Proof, remedy
from shardlab.proof.step_on_ranks import Written, tiny_run
from shardlab.settings import pretrained
from shardlab.settings.pretrained import settings as settings_of
from shardlab.settings.types import Model

LLAMA = transformers_models.GATED | {"model_type": "llama"}


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


@pytest.mark.parametrize("pooled", [True, False])
def test_a_classifier_without_a_head_gets_one_and_no_other_new_weight(tmp_path, capsys, pooled):
    config = transformers_models.CONFIGS["vit"]
    transformers.ViTModel(config, add_pooling_layer=pooled).save_pretrained(tmp_path)
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"lm_head.weight": None}, None),
        ({"lm_head.weight": "shared.weight"}, "equals the embeddings, .*; remove lm_head.weight from the weights"),
        ({"encoder.embed_tokens.weight": "lm_head.weight"}, "for each; remove encoder.embed_tokens.weight from"),
    ],
)
def test_a_head_is_tied_where_the_library_ties_it(tmp_path, change, words):
    CONFIG_MAPPING["mt5"]().save_pretrained(tmp_path)
    tiny_config.write(_transformers.configuration(tmp_path, {"tie_word_embeddings": False})[0], tmp_path)
    model = _transformers.create("summarization", str(tmp_path), {}, pretrained=False)
    torch.nn.init.ones_(model.lm_head.weight)
    weights = models.state(model)
    weights |= {name: weights[other].clone() for name, other in change.items() if other}
    kept = {name: value for name, value in weights.items() if change.get(name, name)}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for loaded in (False, True):
        with pytest.raises(UserError, match=words) if loaded and words else nullcontext():
            model = _transformers.create("summarization", str(tmp_path), {}, pretrained=loaded)
            assert (model.lm_head.weight is model.shared.weight) == (change == {"lm_head.weight": None})
    assert change or (model.lm_head.weight == 1).all(), "that of the file"


def test_only_what_the_library_ties_has_to_be_one(tmp_path):
    config = tiny_config.tiny(CONFIG_MAPPING["t5gemma"]())  # two embeddings, of which one is the output layer
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    model = _transformers.create("summarization", str(tmp_path), {}, pretrained=True)
    assert model.get_output_embeddings().weight is model.get_decoder().get_input_embeddings().weight
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight


@pytest.mark.parametrize(("kind", "refused"), [("mixtral", True), ("llama4_text", False)])
def test_a_loss_of_the_router_is_refused_where_the_library_has_one(tmp_path, kind, refused):
    tiny_config.write(CONFIG_MAPPING[kind](output_router_logits=True), tmp_path)
    with pytest.raises(UserError, match="the router's auxiliary loss") if refused else nullcontext():
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


@pytest.mark.parametrize(
    ("named", "refused"),
    [("BertForMaskedLM", 1), ("BertModel", 0), ("BertLMHeadModel", 0), ("FunnelBaseModel", 0), ("BertForOurTask", 0)],
)
def test_only_a_known_class_with_another_head_is_of_another_task(named, refused):
    assert tiny_config.is_of_another_task(named, "BertLMHeadModel") == refused


FAULTY = [
    ([1, 2], "/config.json is [1, 2], no object of JSON; name a folder written by save_pretrained."),
    ("{", "/config.json is damaged (the model's configuration is not JSON: "),
    (LLAMA | {"num_hidden_layers": "4"}, ": Field 'num_hidden_layers' expected int, got str (value: '4'); correct it"),
    (LLAMA | {"num_attention_heads": 0}, " at `self.head_dim = self.hidden_size // self.num_attention_heads`; "),
    (LLAMA | {"rope_scaling": {"rope_type": "yarnn", "factor": 2.0}}, ": KeyError 'yarnn' at `"),
    ({"model_type": "albert"}, "(AutoModelForCausalLM): the library has none of type albert; "),
    (LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "remove the key to have that proven"),
    (LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_thetta": 5e5}}, "did you mean rope_theta?"),
    ({"model_type": "gemma3", "text_config": {"num_hiden_layers": 2}}, "; did you mean num_hidden_layers? Write that,"),
]
"""Contents of a config.json, and what is said of it."""


@pytest.mark.parametrize(("content", "words"), FAULTY)
def test_a_config_that_describes_no_model_is_one_sentence(tmp_path, monkeypatch, content, words):
    (tmp_path / "config.json").write_text("{}")
    run, folder = tiny_run(tmp_path, "single"), tmp_path / "a model"
    run = run.model_copy(update={"model": run.model.model_copy(update={"folder": str(folder)})})
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["check-model", str(folder), "--strategies", "fsdp"])
    calls = [check_model.main]
    if "proven" not in words:  # the stages of a call
        calls.append(lambda: prove.check(run, ["fsdp"], tmp_path / "proofs.json"))
        calls.append(lambda: models.build(run.model, run.task, torch.float32))
    for call in calls:
        with pytest.raises(UserError) as error:
            call()
        said = str(error.value)
        assert words in said
        assert "\n" not in said
        assert str(folder) in said
        assert tempfile.gettempdir() not in said.replace(str(folder), "")


@pytest.mark.parametrize(
    ("kind", "keys", "words"),
    [
        ("olmo3", {"num_key_value_heads": 3}, "(4) must match the size of tensor b (3)"),
        ("longcat_flash", {}, None),  # which fake tensors do not run through
    ],
)
def test_sizes_that_the_library_cannot_run_are_refused(tmp_path, kind, keys, words):
    config = tiny_config.tiny(CONFIG_MAPPING[kind]())
    vars(config).update(keys)
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=rf"^{tmp_path}: .*{re.escape(words)}") if words else nullcontext():
        _transformers.check(tiny_config.task_of(config), str(tmp_path), {})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"torch_dtype": "bfloat16"}, "^torch_dtype under `model:` has no effect: weights "),
        ({"num_labels": 7, "classes": 5}, "^num_labels under `model:` is classes under `shape:`, .*; write it once"),
        ({"vocab": 512}, "Olmo3Config takes no key vocab, which the workload's file has under `model:` or `shape:`; "),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, " takes the place of all its keys; add rope"),
        (
            {"sliding_window": "24", "rms_norm_eps": 1e-5},
            ": Olmo3Config does not take sliding_window 24, rms_norm_eps 1e-05: .* expected int, got str",
        ),
    ],
)
def test_keys_of_a_workload_that_fit_no_model_are_refused(tmp_path, keys, words):
    tiny_config.write(CONFIG_MAPPING["olmo3"](), tmp_path)
    with pytest.raises(UserError, match=words):
        _transformers.check("language_modelling", str(tmp_path), keys)


def test_a_key_of_a_workload_is_one_of_the_file(tmp_path):
    """Also one of which the class computes others; one that it computes from others is refused."""
    CONFIG_MAPPING["qwen3_next"](num_hidden_layers=4).save_pretrained(tmp_path / "interval")
    keys = json.loads((tmp_path / "interval/config.json").read_text())
    del keys["layer_types"]
    (tmp_path / "interval/config.json").write_text(json.dumps(keys | {"full_attention_interval": 4}))
    config, unknown = _transformers.configuration(tmp_path / "interval", {"full_attention_interval": 2})
    assert (config.layer_types, unknown) == (["linear_attention", "full_attention"] * 2, {})
    CONFIG_MAPPING["nemotron_h"]().save_pretrained(tmp_path / "infinity")  # as one of its numbers is
    assert _transformers.configuration(tmp_path / "infinity", {"vocab_size": 512})[0].vocab_size == 512
    CONFIG_MAPPING["mimo_v2_flash"]().save_pretrained(tmp_path / "window")
    keys = json.loads((tmp_path / "window/config.json").read_text())
    (tmp_path / "window/config.json").write_text(json.dumps(keys | {"sliding_window_size": 128}))
    with pytest.raises(
        UserError, match="MiMoV2FlashConfig computes sliding_window from other keys, so it has no effect"
    ):
        _transformers.check("language_modelling", str(tmp_path / "window"), {"sliding_window": 24})


def test_a_size_of_pictures_is_a_key_of_models_that_have_one(tmp_path):
    for kind in ("resnet", "clip", "textnet"):
        CONFIG_MAPPING[kind]().save_pretrained(tmp_path / kind)
    _transformers.check("classification", str(tmp_path / "resnet"), {"classes": 5, "image_size": 32})
    with torch.device("meta"):
        model = _transformers.create("classification", str(tmp_path / "resnet"), {}, pretrained=False)
    assert model.obstacles() == [], "stages that change the number of channels"
    _transformers.check("classification", str(tmp_path / "textnet"), {"channels": 1})  # stem_num_channels there
    with pytest.raises(UserError, match="CLIPConfig takes no key image_size"):  # its parts have
        _transformers.check("classification", str(tmp_path / "clip"), {"classes": 5, "image_size": 32})


def test_a_tiny_model_has_no_key_without_effect_which_could_look_misspelled_there(tmp_path):
    """Its configuration has rope_theta elsewhere, so that it seems not to be written."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"rope_theta": 1e4, "rope_thta": 1e6}))
    config, _ = _transformers.configuration(tmp_path, {})
    unread = _transformers.unread("language_modelling", str(tmp_path), {})
    assert unread == ["rope_thta"]
    tiny_config.write(config, tmp_path / "tiny", unread=unread)
    _transformers.configuration(tmp_path / "tiny", {})


@pytest.mark.parametrize("task", ["language_modelling", "instruction_tuning"])
def test_a_strategy_that_is_not_proven_equal_is_refused(tmp_path, monkeypatch, task):
    """If what failed in its proof may be the strategy: those that divide a model, or a row of several documents."""
    verdicts = {"fsdp": "equal", "cp": "equal", "ddp": "failed", "mp": "failed", "tp@tp=4": "failed"}
    verdicts |= {"pp": "differs", "ep": "refused", "zero1": "", "tp@tp=8": ""}
    tried = {}

    def proven(_, strategies, written):
        tried.update(strategies)
        return [Proof(name, verdicts[name], "why") for name in strategies]

    monkeypatch.setattr(prove, "prove", proven)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results/init/mine/proofs.json"
    path.parent.mkdir(parents=True)
    run = tiny_run(tmp_path, "single", written=Written([], {}, task))
    prove.check(run, verdicts, path)
    failed = {"mp", "tp@tp=4", "tp@tp=8"} | ({"ddp"} if task == "instruction_tuning" else set())
    of = "its documents one at a time" if task == "instruction_tuning" else "one process"
    remedies = {name: remedy(Proof(name, "failed"), ["fsdp", "cp"]) for name in verdicts}
    assert pretrained.refusals(run, "mine") == {
        **{name: f"it could not be proven at tiny sizes (why); {remedies[name]}." for name in failed},
        "pp": f"at tiny sizes a step is not that of {of}: why; {remedies['pp']}.",
        "ep": "why",
    }
    assert tried["tp@tp=4"].degrees == {"tp": 2}
    assert tried.keys() == verdicts.keys() - {"zero1", "tp@tp=8"}, "of sizes one"
    shared = run.model_copy(update={"recipe": run.recipe.model_copy(update={"sync_batch_norm": True})})
    assert pretrained.refusals(shared, "mine") == {}, "they are made again for it"
    verdicts["mp"] = "equal"
    prove.check(run, verdicts, path)
    assert "mp" not in pretrained.refusals(run, "mine"), "what failed may be this machine's"


PUBLISHED = [
    {"model_type": "gemma2", "sliding_window": 4096, "sliding_window_size": 4096, "cache_implementation": "hybrid"},
    {"model_type": "gemma3_text", "sliding_window_pattern": 6, "sliding_window": 512, "rope_local_base_freq": 1e4},
    {"model_type": "gpt_neox", "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0},
    {"model_type": "gpt_oss", "experts_per_token": 4, "num_experts_per_tok": 4, "initial_context_length": 4096},
    {"model_type": "bart", "classif_dropout": 0.1, "classifier_dropout": 0.0, "normalize_embedding": True},
]
"""Keys without effect of published files, with those next to them that have one."""


@pytest.mark.parametrize("keys", PUBLISHED, ids=lambda keys: keys["model_type"])
def test_keys_of_published_files_are_taken_also_as_the_library_writes_them(tmp_path, keys):
    (tmp_path / "config.json").write_text(json.dumps(keys))
    config, _ = _transformers.configuration(tmp_path, {})
    for saved in (config, tiny_config.tiny(config)):
        saved.save_pretrained(tmp_path)
        _transformers.configuration(tmp_path, {})


@pytest.mark.parametrize(
    ("keys", "unread"),
    [
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 10}, []),  # which a property reads
        (
            LLAMA | {"rms_norm_eps": 1e-6, "rms_norm_epsilon": 1e-3, "num_kv_heads": 2, "torch_dtype": "bfloat16"},
            ["rms_norm_epsilon", "num_kv_heads"],
        ),
        (
            LLAMA | {"sliding_window": 16, "rope_scaling": {"type": "linear", "factor": 2.0, "spiral": 32}},
            ["sliding_window", "rope_scaling.spiral"],
        ),
        ({"model_type": "t5gemma", "encoder": {"sliding_window": 16, "sliding_windw": 8}}, ["encoder.sliding_windw"]),
    ],
)
def test_keys_that_nothing_reads_are_found(tmp_path, keys, unread):
    (tmp_path / "config.json").write_text(json.dumps(keys))
    task = "summarization" if "encoder" in keys else "language_modelling"
    assert _transformers.unread(task, str(tmp_path), {}) == unread
