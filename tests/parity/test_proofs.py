"""The proof of a strategy on a tiny model finds faults, names the parameter, and survives a rank that crashes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
import zoo
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from helpers.common import ROOT
from shardlab.errors import UserError
from shardlab.proof import tiny_config
from shardlab.proof.tiny_runs import Written, tiny_run
from shardlab.settings import load


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("llama", {"num_hidden_layers": 4, "hidden_size": 64, "num_key_value_heads": 4, "hidden_act": "silu"}),
        ("mistral", {"num_key_value_heads": 2, "sliding_window": 5}),
        ("gemma3_text", {"layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 2, "num_key_value_heads": 2}),
        ("deepseek_v3", {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "qk_rope_head_dim": 8, "head_dim": 8}),
    ],
)
def test_a_tiny_configuration_keeps_what_is_no_size(kind, kept):
    tiny = tiny_config.tiny(CONFIG_MAPPING[kind]()).to_dict()
    assert {key: tiny[key] for key in kept} == kept


def test_layers_of_each_kind_stay():
    config = transformers.Qwen3Config(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
    assert tiny_config.tiny(config).layer_types == ["sliding_attention", "full_attention"] * 2
    config = transformers.Gemma3TextConfig(num_hidden_layers=26)
    assert {*tiny_config.tiny(config).layer_types} == {*config.layer_types}


@pytest.mark.parametrize(("parts", "heads"), [(2, 2), (8, 2), (16, 1)])
def test_key_heads_that_are_fewer_than_the_ranks_are_so_in_a_proof(parts, heads, tmp_path):
    tiny_config.write(transformers.LlamaConfig(num_key_value_heads=8), tmp_path, parts)
    assert tiny_config.read(tmp_path).num_key_value_heads == heads


def test_sizes_that_do_not_fit_are_one_sentence():
    config = transformers.LlamaConfig()
    config.num_key_value_heads = 3
    config.layer_types = ["full_attention"]
    with pytest.raises(UserError, match=r"no rule of proof/tiny_config.py makes a tiny LlamaConfig: "):
        tiny_config.tiny(config)


def test_the_names_that_are_proven_are_strategies():
    assert {*zoo.STRATEGIES} <= {*load.own_strategies()}
    assert {"llama", "gpt2", "gemma3_text"} < {*zoo.decoders()}
    assert not {"bert", "t5", "bart", "gemma3"} & {*zoo.decoders()}


@pytest.fixture(scope="module")
def proofs(tmp_path_factory):
    """{case: (verdict, reason)} of faulty_proofs.py."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_config.write(transformers.LlamaConfig(), folder)
    transformers.ApertusConfig().save_pretrained(folder / "apertus")
    (folder / "run.json").write_text(tiny_run(folder / "apertus", "single").model_dump_json())
    transformers.OPTConfig().save_pretrained(folder / "opt")
    mixed = tiny_run(folder / "opt", "single", written=Written([], {}, "instruction_tuning"))
    (folder / "mixed.json").write_text(mixed.model_dump_json())
    files = [str(folder), str(folder / "run.json"), str(folder / "mixed.json")]
    for task, config in (("summarization", transformers.T5Config), ("classification", transformers.ViTConfig)):
        config().save_pretrained(folder / task)
        other = tiny_run(folder / task, "single", written=Written([], {}, task))
        files.append(str(folder / f"{task}.json"))
        Path(files[-1]).write_text(other.model_dump_json())
    words = [sys.executable, str(ROOT / "tests/parity/faulty_proofs.py"), *files]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("case", "verdict", "reason"),
    [
        ("ddp", "equal", ""),
        ("not_reduced", "differs", r"gradient of model\.layers\.\*\.mlp\.up_proj\.weight differs by"),
        ("scaled_on_one_rank", "differs", r"gradient of model\.layers\.\*"),
        ("crashed", "failed", "ZeroDivisionError: of one rank"),
        ("after_the_crash", "equal", ""),
        ("updated_twice", "differs", "update of "),
        ("counted_twice", "differs", r"gradient norm differs by 41 % \(0 of 39 gradients"),
        ("narrow", "differs", "of its largest value"),
        ("equal", "equal", "None"),
        (
            "refused",
            "differs",
            r"at tiny sizes .*act_fn\.alpha_[np] differs by \d+ % \(8 of 51 gradients; the",
        ),
        ("alike", "differs", ""),
        ("again", "0", ""),
        *((f"packed_{name}", "equal", "") for name in ("single", "tp", "pp", "cp", "cp_ulysses", "cp_ring")),
        *((f"{task}_{name}", "equal", "") for task in ("summarization", "classification") for name in ("fsdp", "tp")),
        ("classification_pp", "equal", ""),
        ("summarization_pp", "refused", "has two stacks of layers"),
        (
            "mixed",
            "differs",
            "not that of its documents one at a time: .*; use task language_modelling, or a model that tells",
        ),
    ],
)
def test_a_fault_is_found_and_named(proofs, case, verdict, reason):
    found, why = proofs[case]
    assert found == verdict
    assert re.search(reason, why)
