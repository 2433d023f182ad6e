"""Types of transformers models, each with something of its own, under every axis: as docs/evidence.md says."""

import os
import re
import subprocess
import sys

import pytest
import zoo

import docs
from helpers.common import ROOT

pytestmark = pytest.mark.long  # what is special of them under one axis each: test_transformers.py
KINDS = {
    "llama": "rotary positions, nothing else",
    "qwen3": "norms of each head",
    "olmo2": "norms over all heads",
    "gemma2": "softcap, windows, a scaled embedding",
    "gemma3_text": "two kinds of rotary positions",
    "llama4_text": "chunks, experts, layers without positions",
    "gpt_oss": "sinks, experts with biases",
    "mixtral": "experts",
    "qwen2_moe": "a shared expert with a gate",
    "deepseek_v3": "latent attention, groups of experts",
    "phi3": "projections in one matrix",
    "cohere2": "attention and feed-forward in parallel, scaled logits",
    "granite": "scaled residuals",
    "glm4": "half of a head rotated",
    "gpt2": "learned positions, transposed projections, tied",
    "gptj": "one norm for attention and feed-forward",
    "bloom": "biases by distance",
    "opt": "positions with an offset",
    "mpt": "biases by distance, a plan of ours",
    "stablelm": "a plan of ours",
    "hunyuan_v1_dense": "norms behind the rotation",
    "lfm2": "convolutions between layers of attention",
    "mamba": "recurrence",
}
"""Type: what is its own."""
STRATEGIES = ("fsdp_tp", "pp", "cp", "fsdp_ep")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{type: {strategy: proof}}, of a process of its own: it forks the ranks."""
    path = tmp_path_factory.mktemp("zoo") / "zoo.jsonl"
    words = [sys.executable, str(ROOT / "benchmarks/zoo.py"), *KINDS, "--at-once=1", "--output", str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*words, "--strategies", *STRATEGIES], env=environment, capture_output=True, check=True)
    return zoo.read(path)


def on_the_page():
    """{type: {strategy: sign}} of docs/evidence.md."""
    about, rows = docs.between((ROOT / "docs/evidence.md").read_text(), "models").split("\n\n")[:2]
    names, found = re.findall(r"`(\w+)`", about), {}
    for row in rows.splitlines()[2:]:
        kinds, *outcomes = row.strip("|").split(" | ")
        signs = {name: sign for cell, sign in zip(outcomes, "·≠!", strict=True) for name in re.findall(r"\w+", cell)}
        found |= dict.fromkeys(kinds.split(), dict.fromkeys(names, "=") | signs)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_is_what_the_page_says(found, kind):
    signs = {name: zoo.SIGNS[proof.verdict] for name, proof in found[kind].items()}
    page = on_the_page()[kind]
    assert signs == {name: page[name] for name in STRATEGIES}, found[kind]
