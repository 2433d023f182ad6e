"""Models of the transformers library under the strategies that take any module, equal to one device.

The models are small, and made here: T5 (embeddings tied, encoder and decoder), Llama (a position table that is in no
file), GPT-2 (output tied to the embedding), ViT (pretrained for another number of classes), and decoders of which one
axis each computes something in a way of its own.
"""

import json
import shutil

import cases
import pytest
import torch
from cases import chosen, parametrized
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
HALF = {"max_steps": 2, "checkpoint_interval_steps": 2}
MEASURED = ("pp_zbv-llama-float64", "tp-gemma3-float64")
"""Cases that are compared with their plan."""
MADE = {}
"""Model: a workload that no file has."""


def run_of(strategy, name, **recipe):
    recipe = {"global_batch_size": 5, "max_steps": 5} | recipe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "workload", MADE.__getitem__)
        return resolve.run(load.config({"recipe": recipe, "workloads": [name]}), strategy, name)


class Case(cases.Case):
    """One whose workload is a model of the library."""

    def run(self):
        return run_of(self.strategy, self.workload, dtype=self.dtype, **dict(self.recipe))


def rows(model, short, long="", recipe=""):
    return cases.rows(recipe, model, short, long, kind=Case)


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
    *rows("t5", "", "fsdp_offload zero3 fsdp_tp", "hard"),
    *rows("llama", "", "fsdp zero2 pp cp fsdp_cp tp tp_sp tp_loss", "hard"),
    *rows("gpt2", "", "fsdp_pp fsdp_tp_pp", "hard"),
    *rows("mixtral", "", "pp fsdp_tp_ep fsdp_ep_cp pp_ep", "hard"),
    *rows("gpt2_packed", "", "fsdp tp cp_ring", "hard"),
    *rows("llama", "", "ddp fsdp_tp pp cp fsdp_tp@tp=4 zero3", "adapted_attention"),
    *rows("qwen3", "tp_sp", "tp_loss", "adapted_attention"),
    *rows("mixtral", "ep", "fsdp_tp_ep tp", "adapted_attention"),
]


@pytest.fixture(scope="module", autouse=True)
def _made(tmp_path_factory):
    """Make the models, and their workloads."""
    folder = tmp_path_factory.mktemp("models")
    no_plan = {"tensor": {}, "tensor_sizes": [], "segments": [], "experts": {}}
    for name, base in WORKLOADS.items():
        transformers_models.make(name.removesuffix("_packed"), folder / name)
        workload = load.workload(base).model_copy(deep=True)  # the loaded one is everybody's
        size = workload.sizes["small"].model_copy(update={"model": {}, "shape": {}})
        size.data.update(TINY[base], document_tokens=24, summary_tokens=8)
        size.data.update(PAIRS if name.endswith("_packed") else {})
        plan = no_plan | {"blocks": BLOCKS.get(name, []), "model": f"hf:{folder / name}"}
        MADE[name] = workload.model_copy(update=plan | {"sizes": {"small": size}})
    shape = {"shape": {"classes": 10, "channels": 1, "image_size": 28}, "model": {}}
    MADE["vit"].data["embedded"] = MADE["vit"].data["embedded"].model_copy(update=shape)


def prepared(folder, name):
    """Write the data of a model into a folder."""
    settings = run_of("single", name).data
    store.write(folder / name, settings, *encode(settings, data_sets.read(settings, folder)))


@pytest.fixture(scope="module")
def group(request, server, tmp_path_factory):
    """The results of every case and of what it is compared with."""
    data, found = tmp_path_factory.mktemp("data"), chosen(request)
    for name in {case.workload for case in found}:
        prepared(data, name)
    group = Group(server, tmp_path_factory.mktemp("transformers"), data)
    group.train((case.reference.name, case.reference.run()) for case in found)
    group.train((case.name, case.run()) for case in found)
    return group


@parametrized(CASES)
def test_equals_one_device(group, case, tmp_path):
    folder, run = group.folder / case.name, case.reference.run()
    found = differences(folder, group.folder / case.reference.name, run, group.data / case.workload)
    assert outside(found, native=case.native) == {}
    report = json.loads((folder / "train.json").read_text())
    if case.name in MEASURED:
        check_plan(case.run(), group.data / case.workload, report)
    if case.name in ("fsdp-t5-float64", "fsdp-llama-float64", "fsdp-gpt2-float64", "tp-vit-float64"):
        check_library_reads(case.workload, run.model.folder, folder / "model.safetensors", tmp_path)


def check_plan(run, data, report):
    """A plan says what is sent, and the weights that are held."""
    (plan,) = simulate([(run, data)])
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


def test_a_tied_embedding_of_two_stages_goes_on_with_a_checkpoint_of_another_strategy(server, tmp_path):
    prepared(tmp_path, "gpt2")
    group = Group(server, tmp_path, tmp_path)
    group.train([("single", run_of("single", "gpt2", dtype="float64"))])
    group.train([("half", run_of("fsdp", "gpt2", dtype="float64", **HALF))])
    group.train([("rest", run_of("pp_zbv", "gpt2", dtype="float64"), "half")])
    for mine, reference in zip(steps(tmp_path / "rest"), steps(tmp_path / "single")[HALF["max_steps"] :], strict=True):
        for key in ("loss", "grad_norm"):
            assert mine[key] == pytest.approx(reference[key], rel=1e-10)
    weights, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("rest", "single"))
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


def test_what_does_not_fit_is_said(tmp_path):
    run = run_of("single", "llama")
    for name, words in (("hf:./nowhere", r"\./nowhere/config\.json does not exist"), ("hf:gpt2", "not hf:owner/name")):
        with pytest.raises(UserError, match=words):
            pretrained.settings(run.model.model_copy(update={"name": name}), "w.yaml")
    with pytest.raises(UserError, match=r"tokenizer\.json is missing"):
        encode(run.data.model_copy(update={"tokenizer": str(tmp_path)}), {"train": [("a",)]})


UNEVEN = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensor": {"lm_head": "colwise_gather_output"}}, r"splits layers of its blocks \(lm_head\)"),
        ({"args": UNEVEN}, r"heads that tp does not divide \(num_key_value_heads 3\); choose a degree"),
    ],
)
def test_what_tensor_parallelism_cannot_split_is_refused(changes, words):
    run = run_of("fsdp_tp", "llama")
    run = run.model_copy(update={"model": run.model.model_copy(update=changes)})
    model = build_model(run)
    with pytest.raises(UserError, match=words):
        contents.check(completed(run, model), model)


def test_context_parallelism_of_two_stacks_of_layers_is_refused():
    with pytest.raises(Unsupported, match="t5 has two stacks of layers"):
        run_of("fsdp_cp", "t5")


def test_a_folder_s_own_code_is_never_run(tmp_path):
    run = run_of("single", "llama")
    auto = {"auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}, "model_type": "mine"}
    (tmp_path / "config.json").write_text(json.dumps(auto))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="it needs custom code, which is never run"):
        build_model(run.model_copy(update={"model": run.model.model_copy(update={"folder": str(tmp_path)})}))
    assert not (tmp_path / "ran").exists()
