"""Models of the transformers library under the strategies that take any module, equal to one device.

The models are small, and made here: T5 (embeddings tied, encoder and decoder), Llama (a position table that is in no
file), GPT-2 (output tied to the embedding), ViT (pretrained for another number of classes), and decoders of which one
axis each computes something in a way of its own.
"""

import json
import shutil
from dataclasses import dataclass

import pytest
import torch
from cases import SPREAD_ONLY, chosen, parametrized
from group import Group, differences, outside, steps
from safetensors.torch import load_file
from transformers import Qwen3Config

from helpers import transformers_models
from helpers.common import TINY
from helpers.common import build as build_model
from shardlab import data as data_sets
from shardlab import models
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.errors import Unsupported, UserError
from shardlab.models import contents
from shardlab.models._transformers import configuration
from shardlab.models.declared import completed
from shardlab.plan.simulate import simulate
from shardlab.settings import load, pretrained, resolve

WORKLOADS = {"t5": "xsum", "vit": "vit", "gpt2_packed": "instruct"}
WORKLOADS |= dict.fromkeys(("llama", "gpt2", "qwen3", "mixtral", "gemma3", "gpt_oss", "granite", "opt"), "llama2")
"""Model: the workload whose task, data and recipe it takes. benchmarks/zoo.py has every decoder of the library."""
PAIRS = {"rows": 300, "sequence_length": 64, "document_tokens": 32, "prompt": "{instruction}:"}
"""Data of rows of several documents: short ones, as there are tokens of little more than bytes."""
BLOCKS = {"gpt2": ["transformer.wte", "transformer.h.*"]}
"""Those of the others are what the library declares."""
HARD = {"gradient_accumulation_steps": 2, "activation_checkpointing": "full", "max_grad_norm": 0.01}
HARD["label_smoothing"] = 0.1
HALF = {"max_steps": 2, "checkpoint_interval_steps": 2}
RESUMED = ("fsdp", "pp_zbv", "gpt2")
"""Strategy that stops, that resumes, and a model with an embedding of two stages."""
MEASURED = ("pp_zbv-llama", "tp-gemma3")
"""Cases that are compared with their plan."""


@dataclass(frozen=True)
class Case:
    strategy: str
    model: str
    hard: bool = False
    adapted: bool = False
    long: bool = False
    """Only in the long form."""

    @property
    def native(self):
        return not self.strategy.startswith("zero")

    @property
    def dtype(self):
        return "float64" if self.native else "float32"

    @property
    def name(self):
        return f"{self.strategy}-{self.model}" + "-hard" * self.hard + "-adapted" * self.adapted

    @property
    def single(self):
        return f"single-{self.model}-{self.dtype}" + "-hard" * self.hard + "-adapted" * self.adapted

    @property
    def recipe(self):
        targets = ["model.layers.*.self_attn.*_proj", *["model.layers.*.mlp.down_proj"] * (self.model != "mixtral")]
        rate = 1.0 if self.native else 0.3
        optimizer = {"name": "sgd", "learning_rate": rate, "momentum": 0.8}  # Adam makes updates of rounding alone
        adapter = {"optimizer": optimizer, "adapter": {"rank": 3, "alpha": 6, "targets": targets}}
        recipe = (HARD if self.hard else {}) | (adapter if self.adapted else {})
        if self.strategy == "pp_zbv":  # splits the backward pass, which recomputation does not allow
            recipe.pop("activation_checkpointing", None)
        return recipe

    @property
    def recipe_of_single(self):
        return {key: value for key, value in self.recipe.items() if key not in SPREAD_ONLY}


def rows(model, short, long="", **more):
    """The cases of a model, by the names of strategies of the short form, and more of the long one."""
    found = [Case(strategy, model, **more) for strategy in short.split()]
    return found + [Case(strategy, model, long=True, **more) for strategy in long.split()]


# Of fewer key and value heads than tensor-parallel ranks: 2 on 4 ranks.
FOUR_HEADS = "fsdp_tp@tp=4 fsdp_tp_sp@tp=4"
CASES = [
    *rows("t5", "fsdp", "ddp hsdp zero1 zero3 tp"),
    *rows("vit", "tp", "pp ddp fsdp zero3 tp_sp mp pp_zbv"),
    # The units of fsdp_size are the tied embedding, the output, the layers' modules.
    *rows("gpt2", "tp_loss fsdp_pp", "fsdp fsdp_size mp zero1 zero3 tp pp pp_zbv pp_replicated"),
    *rows("llama", "fsdp pp_zbv", f"dp zero3 mp_ranks pp_gpipe pp_interleaved cp cp_ulysses tp {FOUR_HEADS}"),
    *rows("qwen3", "tp_loss", "tp fsdp_tp tp_sp"),
    *rows("mixtral", "pp", "fsdp_tp ddp tp ep fsdp_ep fsdp_tp_ep"),
    *rows("gemma3", "tp", "tp_sp fsdp_tp"),  # one head of keys and values on two ranks
    *rows("gpt_oss", "cp_ulysses", "cp tp"),
    *rows("granite", "cp_ring"),
    *rows("gpt2_packed", "fsdp cp", "pp tp cp_ring"),
    *rows("opt", "tp"),
    *rows("t5", "", "fsdp_offload zero3 fsdp_tp", hard=True),
    *rows("llama", "", "fsdp zero2 pp cp fsdp_cp tp tp_sp tp_loss", hard=True),
    *rows("gpt2", "", "fsdp_pp fsdp_tp_pp pp_zbv", hard=True),
    *rows("mixtral", "", "pp fsdp_tp_ep fsdp_ep_cp pp_ep", hard=True),
    *rows("gpt2_packed", "", "fsdp tp cp_ring", hard=True),
    *rows("llama", "", "ddp fsdp_tp pp cp fsdp_tp@tp=4 zero3", adapted=True),
    *rows("qwen3", "tp_sp", "tp_loss", adapted=True),
    *rows("mixtral", "ep", "fsdp_tp_ep tp", adapted=True),
]


@pytest.fixture(scope="module")
def resolved(tmp_path_factory):
    """Function from a strategy, a model and a recipe to the run, of a workload that no file has."""
    folder = tmp_path_factory.mktemp("models")

    def changed(name):
        workload = load.workload(WORKLOADS[name]).model_copy(deep=True)  # the loaded one is everybody's
        no_plan = {
            "tensor": {},
            "tensor_sizes": [],
            "segments": [],
            "experts": {},
            "blocks": BLOCKS.get(name, []),
            "model": f"hf:{folder / name}",
        }
        size = workload.sizes["small"].model_copy(update={"model": {}, "shape": {}})
        size.data.update(TINY[WORKLOADS[name]], document_tokens=24, summary_tokens=8)
        size.data.update(PAIRS if name.endswith("_packed") else {})
        return workload.model_copy(update=no_plan | {"sizes": {"small": size}})

    workloads = {}
    for name in WORKLOADS:
        transformers_models.make(name.removesuffix("_packed"), folder / name)
        workloads[name] = changed(name)
        if name == "vit":
            shape = {"classes": 10, "channels": 1, "image_size": 28}
            workloads[name].data["embedded"] = (
                workloads[name].data["embedded"].model_copy(update={"shape": shape, "model": {}})
            )

    def run_of(strategy, name, **recipe):
        recipe = {"global_batch_size": 5, "max_steps": 5} | recipe
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(load, "workload", workloads.__getitem__)
            config = load.config({"recipe": recipe, "workloads": [name]})
            return resolve.run(config, strategy, name)

    return run_of


@pytest.fixture(scope="module")
def folder(request, server, resolved, tmp_path_factory):
    """Folder with the results of every case, of the pairs that resume, and of the trainings on one device."""
    data = tmp_path_factory.mktemp("data")
    found = chosen(request)
    cases, pairs = ([each for each in found if isinstance(each, kind)] for kind in (Case, tuple))
    for name in {case.model for case in cases} | {model for _, _, model in pairs}:
        settings = resolved("single", name).data
        store.write(data / name, settings, *encode(settings, data_sets.read(settings, data)))
    group = Group(server, tmp_path_factory.mktemp("transformers"), data)
    pairs = [(f"{before}-{after}-{model}", before, after, model) for before, after, model in pairs]
    singles = [
        (case.single, resolved("single", case.model, dtype=case.dtype, **case.recipe_of_single)) for case in cases
    ]
    group.train(
        singles + [(f"single-{model}-float64", resolved("single", model, dtype="float64")) for *_, model in pairs]
    )
    group.train(
        [(case.name, resolved(case.strategy, case.model, dtype=case.dtype, **case.recipe)) for case in cases]
        + [(f"{name}-half", resolved(before, model, dtype="float64", **HALF)) for name, before, _, model in pairs]
    )
    group.train((name, resolved(after, model, dtype="float64"), f"{name}-half") for name, _, after, model in pairs)
    return group


@parametrized(CASES)
def test_equals_one_device(folder, resolved, case, tmp_path):
    run = resolved("single", case.model, dtype=case.dtype, **case.recipe_of_single)
    found = differences(folder.folder / case.name, folder.folder / case.single, run, folder.data / case.model)
    assert outside(found, native=case.native) == {}
    report = json.loads((folder.folder / case.name / "train.json").read_text())
    if case.name in MEASURED:
        check_plan(folder, resolved(case.strategy, case.model, dtype="float64"), report)
    if case.name in ("fsdp-t5", "fsdp-llama", "fsdp-gpt2", "tp-vit"):
        check_library_reads(case.model, run.model.folder, folder.folder / case.name / "model.safetensors", tmp_path)


def check_plan(folder, run, report):
    """A plan says what is sent, and the weights that are held."""
    (plan,) = simulate([(run, folder.data / run.workload)])
    assert not isinstance(plan, str), plan
    assert sum(entry["bytes"] for entry in plan["traffic"]) == pytest.approx(report["bytes_per_step"], rel=1e-9)
    for rank, planned in zip(plan["ranks"], plan["tensor_bytes"], strict=True):
        assert planned["largest"]["weights"] == report["tensor_bytes"][rank]["largest"]["weights"]


def check_library_reads(name, given, trained, place):
    """The library reads what was trained."""
    shutil.copy(trained, place)
    shutil.copy(f"{given}/config.json", place)
    changes = {"num_labels": 10} if name == "vit" else {}
    read = models.state(transformers_models.CLASSES[name].from_pretrained(place, dtype=torch.float64, **changes))
    expected = load_file(trained)
    assert read.keys() == expected.keys()
    assert all(read[key].equal(expected[key]) for key in expected)


@pytest.mark.parametrize("pair", [RESUMED], ids="-".join)
def test_resumes_under_another_strategy(folder, pair):
    before, after, model = pair
    actual, single = folder.folder / f"{before}-{after}-{model}", folder.folder / f"single-{model}-float64"
    for mine, reference in zip(steps(actual), steps(single)[HALF["max_steps"] :], strict=True):
        for key in ("loss", "grad_norm"):
            assert mine[key] == pytest.approx(reference[key], rel=1e-10)
    weights, expected = (load_file(path / "model.safetensors") for path in (actual, single))
    assert weights.keys() == expected.keys()
    assert all(torch.allclose(weights[name], expected[name], rtol=1e-9, atol=1e-12) for name in expected)


def test_another_number_of_layers_has_their_kinds(tmp_path):
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    Qwen3Config(num_hidden_layers=6, layer_types=kinds, sliding_window=8).save_pretrained(tmp_path)
    for layers in (2, 8):
        config, unknown = configuration(tmp_path, {"num_hidden_layers": layers})
        assert (config.layer_types, unknown) == ((kinds * 2)[:layers], {})


@pytest.mark.parametrize(("workload", "kind"), [("t5", "t5"), ("vit_pretrained", "vit")])
@pytest.mark.parametrize("size", ["small", "source"])
def test_the_entries_of_the_sources_change_keys_that_the_models_have(workload, kind, size, tmp_path):
    type(transformers_models.CONFIGS[kind])().save_pretrained(tmp_path)
    run = resolve.run(load.config({"size": size, "data": "hub"}), "fsdp", workload)
    assert run.model.pretrained == (size == "source")
    run = run.model_copy(update={"model": run.model.model_copy(update={"folder": str(tmp_path), "pretrained": False})})
    model = build_model(run)
    assert all(models.matching(model, pattern) for pattern in run.model.blocks)


def test_what_does_not_fit_is_said(resolved, tmp_path):
    run = resolved("single", "llama")
    for name, words in (("hf:./nowhere", r"\./nowhere/config\.json does not exist"), ("hf:gpt2", "not hf:owner/name")):
        with pytest.raises(UserError, match=words):
            pretrained.settings(run.model.model_copy(update={"name": name}), "w.yaml")
    with pytest.raises(UserError, match=r"tokenizer\.json is missing"):
        encode(run.data.model_copy(update={"tokenizer": str(tmp_path)}), {"train": [("a",)]})


def test_what_tensor_parallelism_cannot_split_is_refused(resolved):
    def check(strategy, name, **changes):
        run = resolved(strategy, name)
        run = run.model_copy(update={"model": run.model.model_copy(update=changes)})
        model = build_model(run)
        run = completed(run, model)
        models.check_plan(run.model, model)
        contents.check(run, model)

    check("tp", "llama")
    uneven = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
    for strategy, name, changes, words in (
        ("tp", "llama", {"tensor": {"lm_head": "colwise_gather_output"}}, r"splits layers of its blocks \(lm_head\)"),
        ("tp", "llama", {"tensor": {"model.layers.0.mlp.up_proj": "colwise"}}, "no submodule of model .* matches"),
        (
            "fsdp_tp",
            "llama",
            {"args": uneven},
            r"heads that tp does not divide \(num_key_value_heads 3\); choose a degree",
        ),
        ("fsdp", "opt", {"args": {"layerdrop": 0.1}}, r"left out at random \(layerdrop\); each rank would leave out"),
    ):
        with pytest.raises(UserError, match=words):
            check(strategy, name, **changes)
    for strategy in ("pp", "fsdp_cp"):
        with pytest.raises(Unsupported, match="t5 has two stacks of layers"):
            resolved(strategy, "t5")


def test_a_folder_s_own_code_is_never_run(resolved, tmp_path):
    run = resolved("single", "llama")
    auto = {"auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}, "model_type": "mine"}
    (tmp_path / "config.json").write_text(json.dumps(auto))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="it needs custom code, which is never run"):
        build_model(run.model_copy(update={"model": run.model.model_copy(update={"folder": str(tmp_path)})}))
    assert not (tmp_path / "ran").exists()
