"""The proof of a strategy on a tiny model finds faults, names the parameter, and survives a rank that crashes."""

import json
import math
import os
import re
import subprocess
import sys
from itertools import starmap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from helpers.common import ROOT
from shardlab.models._transformers import WITHOUT_EFFECT, configuration
from shardlab.proof import prove, step_on_ranks, tiny_config
from shardlab.proof.step_on_ranks import GRADIENT, LENGTH, LOSS, NORM, UPDATED, Difference, RankStep, Written, tiny_run
from shardlab.proof.warm_ranks import Answer

LLAMA4 = ["chunked_attention"] * 2 + ["full_attention"] * 2
"""Each with and without experts."""


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_key_value_heads": 2}),
        ("gemma3n_text", {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}),
        (
            "deepseek_v3@qk_rope_head_dim=16",
            {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "qk_rope_head_dim": 8, "head_dim": 8},
        ),
        ("lfm2@full_attn_idxs=[2,5,8]", {"layer_types": ["conv", "full_attention"] * 2}),
        ("llama4_text@moe_layers=[1,3]", {"moe_layers": [1, 2], "layer_types": LLAMA4}),
    ],
)
def test_a_tiny_configuration_keeps_what_is_no_size(kind, kept):
    name, _, change = kind.partition("@")
    key, _, value = change.partition("=")
    tiny = tiny_config.tiny(CONFIG_MAPPING[name](**({key: json.loads(value)} if key else {}))).to_dict()
    assert {key: tiny[key] for key in kept} == kept


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 2048}


@pytest.mark.parametrize(
    ("kind", "crossed"),
    [
        ("mistral", {"sliding_window": 5, "max_position_embeddings": 14}),
        ("opt", {"max_position_embeddings": 64}),
        # Without the original length, which this kind of rotary positions does not read.
        ("llama@" + json.dumps({"rope_parameters": DYNAMIC}), {"max_position_embeddings": 14}),
        ("phi3", {"original_max_position_embeddings": 14, "max_position_embeddings": 64}),
        ("llama4_text", {"attention_chunk_size": 5, "floor_scale": 6}),
        ("deepseek_v32", {"index_topk": 3}),
        ("nllb-moe", {"expert_capacity": 4}),  # which no rule knows
        ("bigbird_pegasus", {"block_size": 2, "num_random_blocks": 1}),
        ("inkling2_text", {"log_scaling_n_floor": 6, "rel_extent": 6}),
    ],
)
def test_a_sequence_exceeds_each_length_but_a_table_of_positions(kind, crossed):
    kind, _, rope = kind.partition("@")
    tiny = tiny_config.tiny(CONFIG_MAPPING[kind](**json.loads(rope or "{}"))).to_dict()
    assert {key: tiny[key] for key in crossed} == crossed


def test_a_length_that_no_sequence_exceeds_is_none_in_a_proof():
    assert tiny_config.tiny(transformers.MistralConfig(), longest=4096).sliding_window > LENGTH
    assert tiny_config.tiny(transformers.MistralConfig(), longest=4097).sliding_window < LENGTH
    pairs = SimpleNamespace(options={"document_tokens": 16, "summary_tokens": 8})
    assert prove.longest(SimpleNamespace(data=pairs)) == 16


def test_what_a_proof_does_not_show_is_said():
    config = transformers.SeedOssConfig(sparse_span=96, span_dim=96, hidden_sizes=[96], out_channels=96)
    assert tiny_config.about(config) == [
        "not shown to be exercised by a proof: sparse_span 96",
        "0 in a proof: attention_dropout 0.1, residual_dropout 0.1",
    ]
    config = transformers.Gemma3TextConfig(use_bidirectional_attention=True)
    config.sliding_window = 32  # of which the library writes another number
    assert tiny_config.about(config) == ["exceeded in a proof, at tiny values: sliding_window 32"]
    config = transformers.LlamaConfig(sliding_window=16)
    assert tiny_config.about(config, unread=["sliding_window"]) == [f"{WITHOUT_EFFECT}: sliding_window"]


@pytest.mark.parametrize(("parts", "heads"), [(2, 2), (8, 2), (16, 1)])
def test_key_heads_that_are_fewer_than_the_ranks_are_so_in_a_proof(parts, heads, tmp_path):
    tiny_config.write(transformers.LlamaConfig(num_key_value_heads=8), tmp_path, parts)
    assert configuration(tmp_path, {})[0].num_key_value_heads == heads


QUANTITIES = {LOSS: 1e-9, NORM: 1e-9, f"{GRADIENT}w": 1e-9, f"{UPDATED}w": 1e-6}
"""Quantity of a step: how far it may be from that of one process."""


@pytest.mark.parametrize("name", QUANTITIES)
def test_each_quantity_of_each_rank_is_judged_by_its_tolerance(name):
    def proof(**values):
        ranks = [(0.25, dict.fromkeys(QUANTITIES, 0.0)), (0.5, dict.fromkeys(QUANTITIES, 0.0) | values)]
        found = [Answer(RankStep([*starmap(Difference, rank.items())], held)) for held, rank in ranks]
        return judged(*found, Answer(RankStep([Difference(LOSS, 0.0)], 0.1)))

    limit = QUANTITIES[name]
    found = [proof(**{name: value}) for value in (limit, 1.01 * limit, math.inf, math.nan)]
    assert [each.verdict for each in found] == ["equal", "differs", "differs", "differs"]
    assert (found[0].largest, found[0].held) == (0.0 if name.startswith(UPDATED) else limit, 0.5)
    assert ("the loss, too" in found[1].reason) == (name == LOSS)
    if not name.startswith(UPDATED):
        worst = proof(**{LOSS: 1.0, name: 2.0}).reason
        assert re.match(rf"{name} differs by 200 % \(\d of 1 gradients; the loss, too\)", worst)


def judged(*answers, noise=0.0):
    return prove.judge(SimpleNamespace(strategy="ddp"), [*answers], noise)


def test_a_model_that_rounds_more_has_a_larger_tolerance_up_to_a_limit():
    def verdict(apart, noise):
        return judged(Answer(RankStep([Difference(LOSS, 0.0), Difference(GRADIENT, apart)], 0.5)), noise=noise).verdict

    assert [verdict(apart, 1e-9) for apart in (3.9e-9, 4.1e-9)] == ["equal", "differs"]
    assert [verdict(apart, 1.0) for apart in (0.9e-7, 1.1e-7)] == ["equal", "differs"]


def test_the_first_cause_is_the_reason():
    waited = [Answer(failure="no answer in time"), Answer(failure="it stops with DistError: Connection closed")]
    assert judged(*waited, Answer(failure="it stops with KeyError"))[1:3] == ("failed", "it stops with KeyError")
    assert judged(*waited)[1:3] == ("failed", "no answer in time")
    assert judged(Answer(refusal="too few"), Answer(refusal="too many"))[1:3] == ("refused", "too few")


@pytest.mark.parametrize("size", [0.3, 20.0])
def test_quantities_are_relative_to_their_largest_value_or_to_a_part_of_the_model_s(size):
    """A gradient that is nothing but rounding, one that is missing or has another shape, and one of nothing."""
    names = ("", *(f"{kind}{of}" for kind in (GRADIENT, UPDATED) for of in ("whole", "bias", "lost", "cut")))
    expected = {name: torch.tensor([0.1 * size, -size] if not name.endswith("bias") else [0.0]) for name in names}
    found = {name: value + 1e-3 * size for name, value in expected.items() if not name.endswith("lost")}
    found |= {name: value[:1] for name, value in found.items() if name.endswith("cut")}
    expected["empty"] = found["empty"] = torch.empty(0)
    apart = {each.name.removeprefix(GRADIENT): each.value for each in step_on_ranks.differences(found, expected)}
    wanted = {"": 1e-3, "empty": 0.0, "whole": 1e-3, "bias": 100.0, f"{UPDATED}whole": 1e-3, f"{UPDATED}bias": 1.0}
    assert apart == pytest.approx(
        wanted | {name: math.inf for name in apart if name.endswith(("lost", "cut"))}, rel=1e-4
    )


@pytest.fixture(scope="module")
def proofs(tmp_path_factory):
    """{case: (verdict, reason)} of faulty_proofs.py."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_config.write(transformers.LlamaConfig(), folder)
    transformers.OPTConfig().save_pretrained(folder / "opt")
    mixed = tiny_run(folder / "opt", "single", written=Written([], {}, "instruction_tuning"))
    (folder / "mixed.json").write_text(mixed.model_dump_json())
    files = [str(folder), str(folder / "mixed.json")]
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
        ("ddp", "equal", "^100%$"),
        ("not_reduced", "differs", r"gradient of model\.layers\.\*\.mlp\.up_proj\.weight differs by"),
        ("crashed", "failed", "ZeroDivisionError: of one rank"),
        ("died", "failed", r"^the process died \(SIGABRT\): what\(\):  other sizes$"),
        ("after_the_crash", "equal", "^5[01]%$"),
        ("updated_twice", "differs", "update of "),
        ("counted_twice", "differs", r"gradient norm differs by 41 % \(0 of 39 gradients; the loss is equal\)$"),
        ("doubled_loss", "differs", r"^loss differs by 100 % \(0 of 39 gradients; the loss, too\)$"),
        ("packed_cp_ring", "equal", ""),
        ("summarization_tp", "equal", ""),
        ("classification_pp", "equal", ""),
        ("longrope_cp", "equal", ""),
        ("blocks_in_blocks", "equal", ""),
        ("other_loss", "refused", "config.json asks for another term, perhaps by z_loss_coefficient 0.1,"),
        ("layerdrop_ddp", "refused", r"left out at random \(layerdrop\); each rank would leave out others"),
        ("summarization_pp", "refused", "has two stacks of layers"),
        ("rounding_ddp", "equal", "^$"),
        ("shared_False_ddp", "differs", "its batch norm has statistics of each rank's samples$"),
        ("shared_True_ddp", "equal", "^$"),
        ("reference_nan", "", "is nan in float64, in which proofs are made.$"),
        (
            "reference_crashed",
            "",
            "^the tiny model of .* does not run in one process in float64: it stops .* with ValueError",
        ),
        (
            "mixed",
            "refused",
            "not trained as documents one at a time: .*; use task language_modelling, or a model that tells",
        ),
    ],
)
def test_a_fault_is_found_and_named(proofs, case, verdict, reason):
    found, why = proofs[case]
    assert found == verdict
    assert re.search(reason, why)
